"""`tokenmill` on a machine whose clock is two hours ahead: ``python -m tests.app.clock_ahead mill``."""

import time
from typing import Any, Final

from aiokafka.producer.message_accumulator import BatchBuilder

from tokenmill.app.cli import main

AHEAD: Final = 7200.0
"""Seconds; more than brokers put up with, an hour (message.timestamp.after.max.ms)."""
append = BatchBuilder.append


def append_ahead(self: Any, *, timestamp: int | None, key: Any, value: Any, headers: Any = ()) -> Any:
    """Take a record; one without a time of its own gets the clock's. The fast path's parameters, so that it is used."""
    ahead = round((time.time() + AHEAD) * 1000) if timestamp is None else timestamp
    return append(self, timestamp=ahead, key=key, value=value, headers=headers)


if __name__ == "__main__":
    BatchBuilder.append = append_ahead
    main()
