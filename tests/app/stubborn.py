"""`tokenmill`, whose workers do not stop in order: ``python -m tests.app.stubborn mill``."""

import asyncio

from tokenmill.app.cli import main
from tokenmill.app.worker.transport import BatchApp


async def never(_: BatchApp) -> None:
    """Wait for ever, as Faust may."""
    await asyncio.Event().wait()


if __name__ == "__main__":
    BatchApp.on_stop = never  # type: ignore[method-assign,assignment]
    main()
