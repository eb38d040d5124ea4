"""The supervisor: the workers of a service as child processes, started again when they end or get stuck."""
