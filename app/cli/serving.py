"""``tokenmill serve`` and ``mirror``: the whole service with its children, or a full copy of streams on this host."""

import asyncio
import math
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import structlog
import typer

from tokenmill.bucket.objects import Bucket, streams_of
from tokenmill.errors import InputError
from tokenmill.store import Store, StoreLock

from ..buckets import BucketMirror, RunNeeds, needs_of
from ..kafka import fastpath
from ..kafka.control_topic import require_ready
from ..logs import set_up_logging
from ..processes import allow_more_files
from ..segments.mirror import CheckpointKeeper, Mirror, MirroredStream
from ..settings import Loaded, Settings
from ..supervisor.supervisor import Supervisor
from ..supervisor.worker_slot import keep_uploading
from ..tasks import beside, run_until_signalled
from ..telemetry.reporting import Role
from ..terminal import is_terminal
from ..worker.watchdog import WatchLimits
from .options import KeepFrom, argument, command, option, require_beside
from .output import PLAIN_SECONDS, ProgressLine, count, say, show, size

DEFAULTS: Final = WatchLimits()

log = structlog.get_logger(__name__)


@command(
    "serve",
    "tokenmill serve",
    "tokenmill serve --workers 4 --log-format json",
    "tokenmill serve --only segment --upload-to s3://bucket/prefix",
    shown=("bootstrap_servers", "raw_topics", "tokenizer", "sequence_length", "store", "workers"),
)
def serve(
    loaded: Loaded,
    *,
    only: Annotated[
        Role | None, option("Run the workers of this role alone: a container's share of the service.")
    ] = None,
    upload_to: Annotated[
        str | None, option("Bring the store into a bucket as well, as `upload --follow` does.", "BUCKET")
    ] = None,
    heartbeat: Annotated[
        float, option("Kill a worker that says nothing for this many seconds.", None, "--heartbeat-seconds", min=2)
    ] = DEFAULTS.heartbeat,
    grace: Annotated[
        float, option("Seconds that workers have to end in order.", None, "--grace-seconds", min=0)
    ] = DEFAULTS.grace,
) -> None:
    """Run mill workers and a segment worker until Ctrl-C or SIGTERM. A worker that ends is started again.

    Where `dedup` is on, a sequencer, which judges what was seen before, runs as well.
    Ends with a worker's exit code when a new start cannot help: wrong settings, a missing topic, a foreign store. A
    broker that goes away later is waited for, and one that is not there yet for --wait-seconds.
    """
    settings = loaded.settings
    set_up_logging(settings.log_format, settings.log_level)
    if upload_to is not None:
        if only not in {"segment", None}:
            raise InputError(
                f"--upload-to with --only {only}: {only}s have no store. Give it to the segment worker's serve"
            )
        Bucket.open(upload_to)  # what is wrong with the address is said now
    if only == "sequencer":
        settings.require_domains()
    allow_more_files()
    limits = WatchLimits(heartbeat=heartbeat, grace=grace)
    supervisor = Supervisor(settings, only=only, limits=limits, origins=loaded.origins)

    async def run() -> None:
        await require_ready(settings)  # what is wrong from the beginning is said once, not by every worker
        async with beside(*([keep_uploading(settings, upload_to, grace)] if upload_to is not None else [])):
            await supervisor.run()

    raise typer.Exit(run_until_signalled(run(), serves=True))


@command(
    "mirror",
    "tokenmill mirror --store /data/store --bootstrap-servers kafka:9092",
    "tokenmill mirror --store /data/store raw-text.train --keep-from /data/run/data-state.json",
    "tokenmill mirror --store /data/store --once",
    "tokenmill mirror --store /data/store --from s3://bucket/prefix",
    shown=("bootstrap_servers", "store"),
)
def mirror(
    settings: Settings,
    streams: Annotated[list[str] | None, argument("Only these; default: all on the brokers.", "[STREAM]...")] = None,
    *,
    once: Annotated[bool, option("End when all is stored that there is now.")] = False,
    keep_from: KeepFrom = None,
    source: Annotated[str | None, option("Not from Kafka, but from what `upload` filled.", "BUCKET", "--from")] = None,
    dry: Annotated[
        bool, option("With --from: only say what a mirror, or a run over the bucket, takes.", None, "--dry-run")
    ] = False,
    speed: Annotated[
        float | None,
        option("With --dry-run: a global batch's tokens by a step's time.", "N", "--tokens-per-second", min=1),
    ] = None,
) -> None:
    """Keep a full copy of streams and eras in the store, from the token topics, until Ctrl-C or SIGTERM.

    It does what a segment worker does, without a consumer group, and needs only a broker's address. Killed at any
    moment, the same command goes on. New streams and partitions are taken up. With --keep-from, segments that none of
    the states needs are retired while it runs; it reads these files again and again.
    Ends with the code of what only a person can repair, if there is anything: damage, a difference, missing blocks.
    With --from, it needs no broker: every block is held against the hashes of its chain and its eras. With --dry-run
    as well, nothing is fetched but heads: it says what requests, bytes, cache and bandwidth a run will need.
    """
    require_beside("--from", source, dry_run=dry)
    require_beside("--dry-run", dry, tokens_per_second=speed)
    bucket = None if source is None else Bucket.open(source)
    if bucket is not None and dry:
        for name in streams or streams_of(bucket, some=True):
            show(f"{name}: {_told(needs_of(bucket, name, speed))}")
        return
    store = Store.open_or_create(settings.store)
    with StoreLock(store.path, exclusive=True), _MirrorProgressLine() as report:
        set_up_logging(settings.log_format, settings.log_level)
        work: BucketMirror | Mirror
        if bucket is not None:
            keeper = CheckpointKeeper(store.path, keep_from) if keep_from else None
            work = BucketMirror(store, bucket, streams or (), once=once, keeper=keeper, progress=report)
        else:
            fastpath.install()
            work = Mirror(settings, store, streams or (), once=once, keep_from=keep_from or (), progress=report)

        async def run() -> None:
            try:
                await work.run()
            except asyncio.CancelledError:  # asked to end
                log.info("mirror ends", store=str(store.path))
                raise

        code = run_until_signalled(run(), serves=True)
    for found in work.behind:
        say(_described(found))
    for problem in work.problems[1:]:
        say(str(problem))
    if work.problems:
        raise work.problems[0]
    raise typer.Exit(code)


def _told(needs: RunNeeds) -> str:
    told = (
        f"{count(needs.eras, 'era')} in {count(needs.segments, 'segment')}: {size(needs.bytes)} of tokens in "
        f"{count(needs.requests, 'request')} for a mirror, or for each pass and host; a cache of {size(needs.cache)}; "
        "document tables come on top"
    )
    if needs.rate is None:
        return told
    return f"{told}; {size(needs.first)} before the first batch, then {size(round(needs.rate))} a second at least"


def _described(found: MirroredStream) -> str:
    has = f"{found.stream}: {count(found.stored, 'block')}, {count(found.trainable, 'era')}"
    missing = [f"{count(found.blocks, 'block')} ({size(found.bytes)})"] if found.blocks else []
    missing += [count(found.eras, "era")] if found.eras else []
    return f"{has}; " + (f"{' and '.join(missing)} behind" if missing else "complete")


class _MirrorProgressLine(ProgressLine):
    """Called with how far behind each stream is, shows it."""

    def __init__(self) -> None:
        super().__init__("starting")
        self._terminal = is_terminal(sys.stderr)
        self._logged: dict[str, MirroredStream] = {}
        self._at = -math.inf

    def __call__(self, behind: Sequence[MirroredStream]) -> None:
        if self._terminal:
            self.show("; ".join(map(_described, behind)) or "no stream is settled yet")
        elif time.monotonic() - self._at >= PLAIN_SECONDS:
            self._at = time.monotonic()
            for found in behind:
                if self._logged.get(found.stream) != found:
                    log.info(
                        "stored", stream=found.stream, blocks=found.stored, eras=found.trainable,
                        blocks_behind=found.blocks, bytes_behind=found.bytes, eras_behind=found.eras,
                    )  # fmt: skip
                self._logged[found.stream] = found
