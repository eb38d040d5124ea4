"""The protocol and the pure code under a simulated broker: histories of faults, drawn from seeds."""
