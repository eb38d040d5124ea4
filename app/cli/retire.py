"""``tokenmill retire``: old segments of a store are freed."""

from typing import Annotated

import typer

from tokenmill.errors import InputError
from tokenmill.samples import first_needed, read_state
from tokenmill.segments import open_partition, partitions_in, read_stream
from tokenmill.segments.retiring import Retired, retire

from ..settings import Settings
from .options import KeepFrom, OneStream, SomePartitions, examples, with_settings
from .output import AsJson, count, show, show_json, size

Below = Annotated[
    int | None, typer.Option("--below", metavar="BLOCK", min=0, help="Free segments that end below this block.")
]
Keep = Annotated[
    int | None, typer.Option("--keep", metavar="BLOCKS", min=0, help="Keep at least this many of the newest blocks.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "retire",
        epilog=examples(
            "tokenmill retire raw-text.train --keep 1000000",
            "tokenmill retire raw-text.train --keep-from data-state.json",
            "tokenmill retire raw-text.train 0 --below 8192",
        ),
    )(with_settings(retire_command, "store"))


def retire_command(
    settings: Settings,
    stream: OneStream,
    partitions: SomePartitions = None,
    *,
    below: Below = None,
    keep: Keep = None,
    keep_from: KeepFrom = None,
    as_json: AsJson = False,
) -> None:
    """Free the oldest segments of a stream in the store; whoever reads newer blocks, or writes, goes on meanwhile.

    With --keep-from, nothing that a run needs which goes on from one of these states. Whole sealed segments only; the
    newest one always stays. Interrupted, the same command goes on, and so does the
    segment worker when it starts. Nothing is removed from the token topic.
    """
    if (below is None) == (keep is None) and (keep is not None or not keep_from):
        raise InputError("say what may go: either --below BLOCK, or --keep BLOCKS, or --keep-from STATE.json")
    store = settings.store
    info = read_stream(store, stream)
    needed = first_needed(store, info, [read_state(file) for file in keep_from]) if keep_from else None
    found: dict[int, Retired] = {}
    for partition in partitions or partitions_in(store, stream):
        borders = [] if below is None else [below]
        if keep is not None:
            borders.append(open_partition(store, stream, partition).blocks - keep)
        if needed is not None:  # a partition that no era has met yet is needed from its first block on
            borders.append(needed[partition] if partition < len(needed) else 0)
        found[partition] = retire(store, stream, partition, max(min(borders), 0))
    if as_json:
        show_json({p: {"first": r.first, "segments": r.segments, "bytes": r.freed_bytes} for p, r in found.items()})
        return
    for partition, retired in found.items():
        show(f"{stream}/{partition}: {_outcome(retired)}")


def _outcome(retired: Retired) -> str:
    if not retired.segments and retired.first == retired.before:
        return f"begins with block {retired.first} as before, nothing to free"
    return (
        f"begins with block {retired.first} now (before: {retired.before}); "
        f"{count(retired.segments, 'segment')}, {size(retired.freed_bytes)} freed"
    )
