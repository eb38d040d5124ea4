"""``tokenmill repair``: what is damaged in a store, made whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.errors import DamagedError, GapError
from tokenmill.store.repairing import Repaired

from ..settings import Settings
from ..tools.store_repair import PartitionRepair, examine_store, repair_store
from .options import OneStream, SomePartitions, examples, with_settings
from .output import AsJson, count, say, show, show_json

From = Annotated[
    Path | None,
    typer.Option("--from", metavar="DIR", help="Another store of the stream, instead of the token topic; no broker."),
]
Check = Annotated[
    bool, typer.Option("--check", help="Only say what is damaged (exit code 8 if anything is); needs no broker.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "repair",
        epilog=examples(
            "tokenmill repair raw-text.train",
            "tokenmill repair raw-text.train 0 --check",
            "tokenmill repair raw-text.train 0 --from /mnt/other/store",
        ),
    )(with_settings(repair_command, "store", "bootstrap_servers"))


def repair_command(
    settings: Settings,
    stream: OneStream,
    partitions: SomePartitions = None,
    *,
    donor: From = None,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild what is damaged or missing of a stream in the store, byte for byte, from the token topic.

    Every byte is read and checked; only segments that are not what was committed are touched, and damaged files are
    kept with .broken at the end of their names. The segment worker must not run. Interrupted, the same command goes on.
    Exit code 10, with the range, where nothing gives blocks back.
    """
    rewritten: list[str] = []
    if check:
        found = examine_store(settings.store, stream, partitions or ())
    else:
        found, rewritten = repair_store(settings, stream, partitions or (), donor=donor, progress=_say)
    if as_json:
        show_json({"partitions": [partition.to_dict() for partition in found], "descriptions": rewritten})
    else:
        for path in rewritten:
            show(f"{path}: written again")
        for partition in found:
            for line in _lines(partition, check=check):
                show(line)
    if check and any(partition.segments for partition in found):
        raise DamagedError(f"{stream} is damaged in {settings.store}", f"`tokenmill repair {stream}` repairs it")
    _require_all(found, settings.store)


def _say(stream: str, partition: int, repaired: Repaired) -> None:
    say(f"{stream}/{partition}: {repaired.what}")


def _lines(partition: PartitionRepair, *, check: bool) -> list[str]:
    """Return what became of a partition, for people."""
    name = f"{partition.stream}/{partition.partition}"
    if not partition.segments:
        return [f"{name}: nothing is damaged"]
    if check:
        return [f"{name}: {segment.what}" for segment in partition.segments]
    return [f"{name}: {_outcome(segment)}" for segment in partition.segments]


def _outcome(segment: Repaired) -> str:
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


def _require_all(found: list[PartitionRepair], store: Path) -> None:
    lost = [f"{_ranges(p.lost)} of {p.stream}/{p.partition}" for p in found if p.lost]
    if lost:
        raise GapError(
            f"nothing gives back {'; '.join(lost)} in {store}: name another store with --from; or, if these are old, "
            "free them and all before them with `tokenmill retire`; or read past them with on_damage='skip'"
        )
