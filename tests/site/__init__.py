"""The docs as a built site, and the SBOMs: `make test-site`."""
