"""Other people's packages, really run, each kind in an environment of its own (`make test-peers`)."""
