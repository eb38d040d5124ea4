"""``tokenmill repair``, ``retire`` and ``adopt``: damage is repaired, segments are freed, a copy is its own store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tokenmill.bucket.cache import open_temporarily
from tokenmill.bucket.objects import Bucket
from tokenmill.errors import DamagedError, GapError, InputError
from tokenmill.samples.sequence import Position
from tokenmill.samples.trainable import UNPINNED, first_needed, read_state
from tokenmill.store import Store, open_eras, open_partition, partitions_in, read_stream
from tokenmill.store.layout import partition_directory, repair_advice

from ..buckets.upload import Upload
from ..segments.retiring import Retired, retire
from ..settings import Settings
from ..tools.repair.repairing import Repaired
from ..tools.repair.store_repair import PartitionRepair, examine_store, repair_store
from .options import KeepFrom, OneStream, SomePartitions, command, option
from .output import AsJson, DryRun, Yes, agree, asks, count, say, show, show_json, size


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
    """Return the position of a state in a file, an old one with a warning."""
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
    check: Annotated[
        bool, option("Only say what is damaged (exit code 8 if anything is); needs no broker.", None, "--check")
    ] = False,
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
        other = None if donor is None else open_temporarily(donor)
        found, rewritten = repair_store(settings, stream, partitions or (), donor=other, progress=_say)
    if as_json:
        show_json({"partitions": [partition.to_dict() for partition in found], "descriptions": rewritten})
    else:
        for path in rewritten:
            show(f"{path}: written again")
        for partition in found:
            for line in _lines(partition, check=check):
                show(line)
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


def _lines(partition: PartitionRepair, *, check: bool) -> list[str]:
    name = f"{partition.stream}/{partition.partition}"
    if not partition.segments:
        return [f"{name}: nothing is damaged"]
    if check:
        return [f"{name}: {segment.what}" for segment in partition.segments]
    return [f"{name}: {_repair_outcome(segment)}" for segment in partition.segments]


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
