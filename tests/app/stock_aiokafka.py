"""`tokenmill` on an aiokafka that the fast path was not written for: ``python -m tests.app.stock_aiokafka mill``."""

from tokenmill.app.cli import main
from tokenmill.app.kafka import fastpath

if __name__ == "__main__":
    fastpath.VERSION = "0.0.0"  # type: ignore[misc]
    main()
