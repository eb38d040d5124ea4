"""`tokenmill` on a disk that takes its time to sync: ``python -m tests.app.slow_disk segment``."""

import os
import time

from tokenmill.app.cli import main

SYNC_SECONDS = 0.4
"""Long enough that a worker that loses partitions is at work on most of them."""
sync = os.fdatasync


def slow(descriptor: int) -> None:
    """Sync, later."""
    time.sleep(SYNC_SECONDS)
    sync(descriptor)


if __name__ == "__main__":
    os.fdatasync = slow  # type: ignore[assignment]
    main()
