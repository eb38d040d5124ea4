"""The pure code under a simulated broker: every fault at every step, thousands of times, without a process."""
