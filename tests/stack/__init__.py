"""The container image and the compose stack, really built and run: `make test-stack`."""
