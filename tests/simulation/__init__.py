"""The protocol under a simulated broker: histories of faults, drawn from seeds."""
