"""``tokenmill mirror``: a full copy of streams and eras on this host."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

import structlog
import typer
from rich.progress import SpinnerColumn

from tokenmill.store import Store, StoreLock

from ..kafka import fastpath
from ..logs import set_up_logging
from ..segments.mirror import Mirror, MirroredStream
from ..settings import Settings
from ..tasks import run_until_signalled
from .options import KeepFrom, examples, with_settings
from .output import PlainColumn, count, messages, say, size
from .progress import PLAIN_SECONDS, ProgressLine

Streams = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STREAM]...", help="Only these; default: all on the brokers.", show_default=False),
]
Once = Annotated[bool, typer.Option("--once", help="End when all is stored that there is now.")]

log = structlog.get_logger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "mirror",
        epilog=examples(
            "tokenmill mirror --store /data/store --bootstrap-servers kafka:9092",
            "tokenmill mirror --store /data/store raw-text.train --keep-from /data/run/data-state.json",
            "tokenmill mirror --store /data/store --once",
        ),
    )(with_settings(mirror, "bootstrap_servers", "store"))


def mirror(settings: Settings, streams: Streams = None, *, once: Once = False, keep_from: KeepFrom = None) -> None:
    """Keep a full copy of streams and eras in the store, from the token topics, until Ctrl-C or SIGTERM.

    As a segment worker does, but without a consumer group, and nothing but a broker's address need be known. Killed at
    any moment, the same command goes on. Streams and partitions that come later are taken up. With --keep-from,
    segments that none of the states needs are retired all the while; the files are read again and again.
    Ends with the code of what only a person can repair, if there is anything: damage, a difference, missing blocks.
    """
    store = Store.open_or_create(settings.store)
    lock = StoreLock(store.path, exclusive=True)
    with MirrorProgressLine() as report:
        set_up_logging(settings.log_format, settings.log_level)
        fastpath.install()
        work = Mirror(settings, store, streams or (), once=once, keep_from=keep_from or (), progress=report)

        async def run() -> int:
            try:
                await work.run()
            except asyncio.CancelledError:  # asked to end
                log.info("mirror ends", store=str(store.path))
            return 0

        run_until_signalled(run())
    lock.close()
    for found in work.behind:
        say(described(found))
    for problem in work.problems[1:]:
        say(str(problem))
    if work.problems:
        raise work.problems[0]


def described(found: MirroredStream) -> str:
    """Return where a stream is, for people."""
    has = f"{found.stream}: {count(found.stored, 'block')}, {count(found.trainable, 'era')}"
    missing = [f"{count(found.blocks, 'block')} ({size(found.bytes)})"] if found.blocks else []
    missing += [count(found.eras, "era")] if found.eras else []
    return f"{has}; " + (f"{' and '.join(missing)} behind" if missing else "complete")


class MirrorProgressLine(ProgressLine):
    """Called with how far behind each stream is, shows it."""

    def __init__(self) -> None:
        super().__init__(SpinnerColumn(), PlainColumn("{task.description}"), description="starting")
        self._terminal = messages().is_terminal
        self._logged: dict[str, MirroredStream] = {}
        self._at = 0.0

    def __call__(self, behind: Sequence[MirroredStream]) -> None:
        """Show it; a log gets what changed, now and then."""
        if self._terminal:
            line = "; ".join(map(described, behind)) or "no stream is settled yet"
            self.show(line, 0, 0, lambda: line)
        elif time.monotonic() - self._at >= PLAIN_SECONDS:
            self._at = time.monotonic()
            for found in behind:
                if self._logged.get(found.stream) != found:
                    log.info(
                        "stored", stream=found.stream, blocks=found.stored, eras=found.trainable,
                        blocks_behind=found.blocks, bytes_behind=found.bytes, eras_behind=found.eras,
                    )  # fmt: skip
                self._logged[found.stream] = found
