"""What leaves a store: ``tokenmill export`` in a format that others read, ``describe``, ``upload`` into a bucket."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import structlog
import typer

from tokenmill.bucket.objects import Bucket
from tokenmill.errors import BucketError, StoreError
from tokenmill.store import streams_in
from tokenmill.store.layout import store_directory

from ..backoff import Backoff
from ..buckets.upload import Upload
from ..logs import set_up_logging
from ..settings import Settings
from ..tasks import in_thread, run_until_signalled
from ..tools.describe import add_broker_facts, card, croissant, store_facts
from ..tools.export import FORMATS, FormatChoice, What, export
from .options import OneStream, argument, command, option
from .output import AsJson, DryRun, count, say, show, show_json, show_page, size
from .progress import ProgressLine

Description = Literal["card", "croissant", "json"]


@command(
    "export",
    "tokenmill export raw-text.train --to lance --out /data/train.lance",
    "tokenmill export raw-text.train --to parquet --what documents --out /data/train",
    shown=("store",),
    bucket=True,
)
def export_command(
    settings: Settings,
    stream: OneStream,
    *,
    to: Annotated[FormatChoice, option(f"{', '.join(FORMATS)}.", "FORMAT", show_default=False)],
    out: Annotated[Path, option("The folder: new, or of the same export.", "DIR", show_default=False)],
    what: Annotated[What, option(f"What a row is: {' or '.join(get_args(What))}.", "ROWS")] = "blocks",
    as_json: AsJson = False,
) -> None:
    """Write the segments of a stream in another library's format, with ids and metadata. No broker is needed.

    They are the sealed ones, and of a stream that has ended all. Given again, the same command adds what was sealed
    since; interrupted, it goes on. docs/export.md says how each format is read.
    """
    with ProgressLine("export") as line:

        def report(done: int, total: int, name: str) -> None:
            line.show(f"{name}, {done} of {count(total, 'segment')} written", done, total)

        result = export(settings.store, stream, out, to=to, what=what, report=report)
    if as_json:
        show_json(result.to_dict())
    else:
        show(
            f"{out}: {count(result.rows, what.removesuffix('s'))}, {count(result.tokens, 'token')} in "
            f"{count(len(result.files), 'file')}; {count(len(result.written), 'segment')} written now"
        )
    if result.unfinished:
        lacking = count(result.unfinished, "document")
        say(f"{lacking} left out, whose last tokens are in no block: the stream was closed without --flush")
    if result.waiting:
        say(
            f"not written yet: {', '.join(result.waiting)} (partition/first block), for their last documents end in "
            "blocks that the store does not hold yet; the same command writes them later"
        )


@command(
    "describe",
    "tokenmill describe raw-text.train > README.md",
    "tokenmill describe raw-text.train --format croissant --offline > croissant.json",
    shown=("store", "bootstrap_servers"),
    bucket=True,
)
def describe_command(
    settings: Settings,
    stream: OneStream,
    *,
    description: Annotated[Description, option(f"{', '.join(get_args(Description))}.", "FORMAT", "--format")] = "card",
    offline: Annotated[bool, option("Ask no broker: what the store knows.", None, "--offline")] = False,
    with_sha: Annotated[
        bool,
        option("SHA-256s of sealed segments, which reads them all; croissant always has them.", None, "--hashes"),
    ] = False,
) -> None:
    """Say what a stream in the store is: sources, recipe, tokenizer, counts, retention, checksums.

    As a card, for people and hubs; --format json has the same for machines. Facts alone: from the store, and from the
    brokers where they answer. What is not known is left open and named.
    """
    facts = store_facts(settings.store, stream, with_sha256=with_sha or description == "croissant")
    asyncio.run(add_broker_facts(facts, None if offline else settings))
    if description == "card":
        told = card(facts)
    else:
        told = json.dumps(croissant(facts) if description == "croissant" else facts.to_dict(), indent=2)
    show_page(told)
    if description == "croissant":  # the others have it in them
        for name, why in facts.unknown.items():
            say(f"not known: {name}: {why}")


LOOK_SECONDS: Final = 1.0
"""How often a store that is followed is looked at; the bucket is asked for nothing where the store has nothing new."""
LONGEST_PAUSE: Final = 60.0
"""Seconds until the next try while a bucket does not answer; the first come after one, two, four."""

log = structlog.get_logger(__name__)


@command(
    "upload",
    "tokenmill upload --store /data/store --to s3://bucket/prefix",
    "tokenmill upload --store /data/store --to s3://bucket/prefix --dry-run",
    "tokenmill upload raw-text.train --store /data/store --to file:///mnt/share --follow",
    shown=("store",),
)
def upload_command(
    settings: Settings,
    streams: Annotated[list[str] | None, argument("Only these; default: all in the store.", "[STREAM]...")] = None,
    *,
    to: Annotated[str, option("s3://…, gs://…, az://… or file:///directory.", "BUCKET", "--to", show_default=False)],
    follow: Annotated[bool, option("Go on while the store grows, until Ctrl-C or SIGTERM.", None, "--follow")] = False,
    dry: DryRun = False,
) -> None:
    """Bring streams of the store into a bucket, which is then one more store. No broker is needed.

    Whole segments and eras; of a stream that has ended, all. Nothing in the bucket is ever replaced. Killed at any
    moment, the same command goes on, and any number of uploads may run at once. --dry-run does not see whether the
    bucket may be written to. Logins are in the environment (AWS_…, GOOGLE_…, AZURE_…), as for other tools.
    """
    bucket, store = Bucket.open(to), store_directory(settings.store)
    if dry:
        for name in _streams(store, streams):
            lacking = Upload(store, name, bucket).look()
            show(
                f"{name}: would upload {count(lacking.segments, 'segment')} ({size(lacking.bytes)} of tokens); "
                f"{count(lacking.eras, 'era')} not in the bucket"
            )
    elif follow:
        set_up_logging(settings.log_format, settings.log_level)
        raise typer.Exit(run_until_signalled(_follow(store, streams, bucket), serves=True))
    else:
        with ProgressLine("upload") as line:
            for name in _streams(store, streams):
                _upload(Upload(store, name, bucket), line)


def _streams(store: Path, wanted: Sequence[str] | None) -> list[str]:
    """Return the streams to upload; raises StoreError where there are none."""
    found = list(wanted or streams_in(store))
    if not found:
        raise StoreError(f"{store} holds no stream: name with --store the directory that a segment worker fills")
    return found


def _upload(upload: Upload, line: ProgressLine) -> None:
    """Upload a stream once, and say what was done."""
    upload.begin()
    total = upload.look().bytes
    line.show(upload.stream, 0, total)
    while upload.step():
        line.show(f"{upload.stream}: {size(upload.bytes)} of {size(total)}", upload.bytes, total)
    heads, waiting = upload.heads, upload.look().eras
    line.say(
        f"{upload.stream}: {count(upload.segments, 'segment')} uploaded ({size(upload.bytes)}); the bucket has "
        f"{count(sum(heads.stops.values()), 'block')}, {count(len(heads.eras), 'era')}"
        + (f"; {count(waiting, 'era')} wait until their segments are full" if waiting else "")
    )


async def _follow(store: Path, wanted: Sequence[str] | None, bucket: Bucket) -> int:
    """Upload what the store has, and what it gets, for ever; streams that come are taken up."""
    uploads: dict[str, Upload] = {}
    pause = Backoff(LOOK_SECONDS, LONGEST_PAUSE)

    def step() -> bool:
        found = [_step(store, name, bucket, uploads) for name in wanted or streams_in(store)]
        return any(found)

    while True:
        try:
            more = await in_thread(step)
        except BucketError as error:
            if not error.passing:
                raise
            log.warning("the bucket is tried again", reason=str(error))
            await asyncio.sleep(pause.next())
            continue
        pause.reset()
        if not more:
            await asyncio.sleep(LOOK_SECONDS)


def _step(store: Path, name: str, bucket: Bucket, uploads: dict[str, Upload]) -> bool:
    """Upload the next segments of a stream; return whether there were any."""
    if name not in uploads:
        upload = Upload(store, name, bucket)
        upload.begin()
        uploads[name] = upload
    upload = uploads[name]
    more = upload.step()
    if more:
        heads = upload.heads
        log.info("uploaded", stream=name, segments=upload.segments, bytes=upload.bytes, eras=len(heads.eras))
    return more
