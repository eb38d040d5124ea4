"""`tokenmill`, of which a part crashes and which then does not stop in order: ``python -m tests.app.crashing mill``."""

from tests.app.stubborn import never
from tokenmill.app.cli import main
from tokenmill.app.worker.transport import BatchApp

start = BatchApp.on_first_start


async def crash() -> None:
    """Crash, as one of Faust's own services may."""
    raise SystemExit(1)


async def start_and_crash(app: BatchApp) -> None:
    """Start as always, and crash."""
    await start(app)
    app.add_future(crash())


if __name__ == "__main__":
    BatchApp.on_first_start = start_and_crash  # type: ignore[method-assign,assignment]
    BatchApp.on_stop = never  # type: ignore[method-assign,assignment]
    main()
