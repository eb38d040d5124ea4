"""The Helm chart, rendered, validated and run as processes: `make test-chart`."""
