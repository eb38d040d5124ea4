"""`tokenmill` on a machine whose clock is two hours ahead: ``python -m tests.app.clock_ahead mill``."""

import time
from typing import Any, Final

from tokenmill.app.cli import main
from tokenmill.app.kafka.fastpath.send_buffers import BatchBuilder

AHEAD: Final = 7200.0
"""Seconds; more than brokers put up with, an hour (message.timestamp.after.max.ms)."""
append = BatchBuilder.append


def append_ahead(builder: BatchBuilder, *, timestamp: int | None, **record: Any) -> Any:
    """Take a record; one without a time of its own gets the clock's."""
    return append(builder, timestamp=round((time.time() + AHEAD) * 1000) if timestamp is None else timestamp, **record)


if __name__ == "__main__":
    BatchBuilder.append = append_ahead  # type: ignore[method-assign,assignment]
    main()
