"""``tokenmill repair``, ``retire`` and ``adopt``: stores; ``export``, ``describe`` and ``upload``: what leaves them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import structlog
import typer

from tokenmill.bucket.objects import Bucket
from tokenmill.errors import BucketError, DamagedError, GapError, InputError, StoreError
from tokenmill.samples.sequence import Position
from tokenmill.samples.trainable import UNPINNED, first_needed, read_state
from tokenmill.store import Store, open_eras, open_partition, partitions_in, read_stream, streams_in
from tokenmill.store.layout import partition_directory, repair_advice, store_directory

from ..buckets import Upload
from ..logs import set_up_logging
from ..segments.retiring import Retired, retire
from ..settings import Settings
from ..tasks import Backoff, in_thread, run_until_signalled
from ..tools.describe import add_broker_facts, card, croissant, store_facts
from ..tools.export import FORMATS, FormatChoice, What, export
from ..tools.repair import Repaired, examine_store, repair_store
from .options import AsJson, DryRun, KeepFrom, OneStream, SomePartitions, Yes, argument, command, open_store, option
from .output import ProgressLine, agree, asks, count, say, show, show_json, show_page, size


@command(
    "retire",
    "tokenmill retire raw-text.train --keep 1000000",
    "tokenmill retire raw-text.train --keep-from data-state.json",
    "tokenmill retire raw-text.train 0 --below 8192",
    "tokenmill retire raw-text.train --uploaded-to s3://bucket/prefix",
    shown=("store",),
)
def retire_command(
    settings: Settings,
    stream: OneStream,
    partitions: SomePartitions = None,
    *,
    below: Annotated[int | None, option("Free segments that end below this block.", "BLOCK", min=0)] = None,
    keep: Annotated[int | None, option("Keep at least this many of the newest blocks.", "BLOCKS", min=0)] = None,
    keep_from: KeepFrom = None,
    uploaded: Annotated[
        str | None, option("Free only what the newest head of this bucket has.", "BUCKET", "--uploaded-to")
    ] = None,
    dry: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Free the oldest segments of a stream in the store; readers of newer blocks, and writers, go on meanwhile.

    With --keep-from, nothing that a run needs which goes on from one of these states. With --uploaded-to, nothing that
    the bucket's heads do not name; nothing at all where they cannot be read. Whole sealed segments only; the
    newest one always stays. Interrupted, the same command goes on, and so does the
    segment worker when it starts. Nothing is removed from the token topic.

    This store never gets those blocks back: a run that needs them has to read another store, and a new store can have
    them as long as the token topic does. On a terminal, this asks first.
    """
    if (below is None) == (keep is None) and (keep is not None or not (keep_from or uploaded)):
        told = "either --below BLOCK, or --keep BLOCKS, or --keep-from STATE.json, or --uploaded-to BUCKET"
        raise InputError(f"say what may go: {told}")
    store = settings.store
    info = read_stream(store, stream)
    needed = first_needed(store, info, [_read(file) for file in keep_from]) if keep_from else None
    safe = None if uploaded is None else Upload(store, stream, Bucket.open(uploaded)).covered()
    below_of: dict[int, int] = {}
    for partition in partitions or partitions_in(store, stream):
        borders = [] if below is None else [below]
        if keep is not None:
            borders.append(open_partition(store, stream, partition).blocks - keep)
        if needed is not None:  # a partition that no era has met yet is needed from its first block on
            borders.append(needed[partition] if partition < len(needed) else 0)
        if safe is not None:
            borders.append(safe.get(partition, 0))
        below_of[partition] = max(min(borders), 0)
    planned = {partition: retire(store, stream, partition, border, dry=True) for partition, border in below_of.items()}
    if not dry and asks(yes=yes) and any(would.segments for would in planned.values()):
        segments = sum(retired.segments for retired in planned.values())
        freed = sum(retired.freed_bytes for retired in planned.values())
        agree(
            f"this frees {count(segments, 'segment')}, {size(freed)}, of {stream} in {settings.store}. It cannot be "
            "undone: the store never gets these blocks back, and runs that need them cannot go on from it"
        )
    found = planned
    if not dry:
        found = {partition: retire(store, stream, partition, border) for partition, border in below_of.items()}
    if as_json:
        show_json({p: {"first": r.first, "segments": r.segments, "bytes": r.freed_bytes} for p, r in found.items()})
        return
    for partition, retired in found.items():
        show(f"{stream}/{partition}: {_outcome(retired, dry=dry)}")


def _read(file: Path) -> Position:
    position = read_state(file)
    if position.unpinned:
        say(f"warning: {file}: {UNPINNED}")
    return position


def _outcome(retired: Retired, *, dry: bool) -> str:
    if not retired.segments and retired.first == retired.before:
        return f"begins with block {retired.first} as before, nothing to free"
    freed = f"{count(retired.segments, 'segment')}, {size(retired.freed_bytes)}"
    if dry:
        return f"would begin with block {retired.first} (now: {retired.before}); {freed} would be freed, nothing was"
    return f"begins with block {retired.first} now (before: {retired.before}); {freed} freed"


@command("adopt", "tokenmill adopt --store /mnt/copy", shown=("store",))
def adopt(settings: Settings, *, as_json: AsJson = False) -> None:
    """Give a store that was copied or moved a new identity, so that a segment worker may continue it here.

    Its consumer group is named after the identity: a copy with the old one would share the original's partitions. What
    the store holds stays as it is. Not for a store that another process writes to.
    """
    store = Store.adopt(settings.store)
    if as_json:
        show_json({"store": store.path, "id": store.id})
        return
    show(store.id)
    say(f"{store.path} belongs here now; a segment worker, or the `tokenmill pack` command that filled it, goes on")


@command(
    "repair",
    "tokenmill repair raw-text.train",
    "tokenmill repair raw-text.train 0 --check",
    "tokenmill repair raw-text.train 0 --from /mnt/other/store",
    shown=("store", "bootstrap_servers"),
)
def repair_command(
    settings: Settings,
    stream: OneStream,
    partitions: SomePartitions = None,
    *,
    donor: Annotated[
        Path | None,
        option("Another store of the stream, or a bucket, instead of the token topic; no broker.", "STORE", "--from"),
    ] = None,
    check: Annotated[bool, option("Only say what is damaged (exit code 8 if anything is); needs no broker.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild what is damaged or missing of a stream in the store, byte for byte, from the rest and the token topic.

    Every byte is read and checked; only segments that are not what was committed are touched, and damaged files are
    kept with .broken at the end of their names. The segment worker must not run. Interrupted, the same command goes on.
    Exit code 10, with the range, where nothing gives blocks back.
    """
    rewritten: list[str] = []
    if check:
        found = examine_store(settings.store, stream, partitions or ())
    else:
        other = None if donor is None else open_store(donor)
        found, rewritten = repair_store(settings, stream, partitions or (), donor=other, progress=_say)
    if as_json:
        show_json({"partitions": [partition.to_dict() for partition in found], "descriptions": rewritten})
    else:
        for path in rewritten:
            show(f"{path}: written again")
        for partition in found:
            name = f"{partition.stream}/{partition.partition}"
            for segment in partition.segments:
                show(f"{name}: {segment.what if check else _repair_outcome(segment)}")
            if not partition.segments:
                show(f"{name}: nothing is damaged")
    hurt = [partition_directory(settings.store, stream, one.partition) for one in found if one.segments]
    if check and hurt:
        raise DamagedError(f"{stream} is damaged in {settings.store}", repair_advice(*hurt))
    lost = [f"{_ranges(p.lost)} of {p.stream}/{p.partition}" for p in found if p.lost]
    if lost:
        raise GapError(
            f"nothing gives back {'; '.join(lost)} in {settings.store}: name another store with --from; or, if these "
            "are old, free them and all before them with `tokenmill retire`; or read past them with on_damage='skip'"
        )
    eras = open_eras(settings.store, stream)
    if (torn := eras.torn()) is not None and eras.is_complete():
        raise torn


def _say(stream: str, partition: int, repaired: Repaired) -> None:
    say(f"{stream}/{partition}: {repaired.what}")


def _repair_outcome(segment: Repaired) -> str:
    kept = f"; the damaged files are kept: {', '.join(path.name for path in segment.kept)}" if segment.kept else ""
    name = f"segment {segment.first:012d}"
    if segment.lost:
        return f"{name} stays as it is: {_ranges(segment.lost)} cannot be given back"
    if not segment.blocks:
        return f"{name} held nothing that was committed, and is begun again{kept}"
    given = f", {count(segment.given, 'block')} of them given back" if segment.given else ", all of its own"
    return f"{name} is whole: {count(segment.blocks, 'block')}{given}{kept}"


def _ranges(runs: Sequence[range]) -> str:
    return ", ".join(f"block {r.start}" if len(r) == 1 else f"blocks {r.start} to {r.stop - 1}" for r in runs)


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
    offline: Annotated[bool, option("Ask no broker: what the store knows.")] = False,
    with_sha: Annotated[
        bool, option("SHA-256s of sealed segments, which reads them all; croissant always has them.", None, "--hashes")
    ] = False,
) -> None:
    """Say what a stream in the store is: sources, recipe, tokenizer, counts, retention, checksums.

    As a card, for people and hubs; --format json has the same for machines. Facts alone: from the store, and from the
    brokers where they answer. What is not known is left open and named.
    """
    facts = store_facts(settings.store, stream, with_sha256=with_sha or description == "croissant")
    asyncio.run(add_broker_facts(facts, None if offline else settings))
    if description == "card":
        show_page(card(facts))
    else:
        show_page(json.dumps(croissant(facts) if description == "croissant" else facts.to_dict(), indent=2))
    if description == "croissant":  # the others have it in them
        for name, why in facts.unknown.items():
            say(f"not known: {name}: {why}")


LOOK_SECONDS: Final = 1.0
"""How often a store that is followed is looked at; the bucket is asked for nothing where the store has nothing new."""

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
    to: Annotated[str, option("s3://…, gs://…, az://… or file:///directory.", "BUCKET", show_default=False)],
    follow: Annotated[bool, option("Go on while the store grows, until Ctrl-C or SIGTERM.")] = False,
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
    found = list(wanted or streams_in(store))
    if not found:
        raise StoreError(f"{store} holds no stream: name with --store the directory that a segment worker fills")
    return found


def _upload(upload: Upload, line: ProgressLine) -> None:
    upload.begin()
    total = upload.look().bytes
    line.show(upload.stream, 0, total)
    while upload.step():
        line.show(f"{upload.stream}: {size(upload.bytes)} of {size(total)}", upload.bytes, total)
    heads, waiting = upload.heads, upload.look().eras
    line.say(
        f"{upload.stream}: {count(upload.segments, 'segment')} uploaded ({size(upload.bytes)}); the bucket has "
        f"{count(sum(heads.stops.values()), 'block')}, {count(len(heads.eras), 'era')}"
        + (f"; {count(waiting, 'more era')} when segments are full" if waiting else "")
    )


async def _follow(store: Path, wanted: Sequence[str] | None, bucket: Bucket) -> None:
    """Upload what the store has, and what it gets, for ever; streams that come are taken up."""
    uploads: dict[str, Upload] = {}
    pause = Backoff(LOOK_SECONDS, 60.0)  # while the bucket does not answer

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
    if name not in uploads:
        upload = Upload(store, name, bucket)
        upload.begin()
        uploads[name] = upload
    upload = uploads[name]
    if more := upload.step():
        log.info("uploaded", stream=name, segments=upload.segments, bytes=upload.bytes, eras=len(upload.heads.eras))
    return more
