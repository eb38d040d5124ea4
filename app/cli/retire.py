"""``tokenmill retire``: old segments of a store are freed."""

from typing import Annotated

import typer

from tokenmill.errors import InputError
from tokenmill.segments import open_partition, partitions_in, read_stream
from tokenmill.segments.retiring import Retired, retire

from ..settings import Settings
from .options import OneStream, SomePartitions, examples, with_settings
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
            "tokenmill retire raw-text.train --keep 1000000", "tokenmill retire raw-text.train 0 --below 8192"
        ),
    )(with_settings(retire_command))


def retire_command(
    settings: Settings,
    stream: OneStream,
    partitions: SomePartitions = None,
    *,
    below: Below = None,
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Free the oldest segments of a stream in the store; whoever reads newer blocks, or writes, goes on meanwhile.

    Whole sealed segments only; the newest one always stays. Interrupted, the same command goes on, and so does the
    segment worker when it starts. Nothing is removed from the token topic.
    """
    if (below is None) == (keep is None):
        raise InputError("say what may go: either --below BLOCK, or --keep BLOCKS")
    store = settings.store
    read_stream(store, stream)
    found: dict[int, Retired] = {}
    for partition in partitions or partitions_in(store, stream):
        border = below if below is not None else open_partition(store, stream, partition).blocks - (keep or 0)
        found[partition] = retire(store, stream, partition, max(border, 0))
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
