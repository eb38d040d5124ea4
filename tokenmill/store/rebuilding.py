"""Moving a rebuilt segment to its place, so that a kill at any moment harms nothing.

The segment is written in the directory ``repair`` beside the others. When it is durable there, a file ``ready`` says so
and names the old files without a successor. Then each new file takes its place, unless the old one is equal. Old files
are kept with ``.broken`` at the end of their names, never deleted. `finish` continues wherever this was interrupted; a
segment that is not ``ready`` is deleted. Writers refuse a partition with a rebuilt segment that is half in its place.
"""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tokenmill.canonical import canonical_json
from tokenmill.store.commit_log import UNKNOWN, scan
from tokenmill.store.damage import damaged
from tokenmill.store.donor import Given
from tokenmill.store.durable import put_file, sync_directory
from tokenmill.store.layout import BROKEN, READY_FILE, REPAIR_DIRECTORY, SegmentPaths
from tokenmill.store.open_segment import OpenSegment
from tokenmill.store.rows import Rows
from tokenmill.store.salvage import NO_ROWS
from tokenmill.store.sealing import seal
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import read_json_file, read_regular
from tokenmill.wire.chain import next_hash


def build(place: SegmentPaths, info: StreamInfo, partition: int, blocks: Sequence[Given], chain_before: bytes) -> None:
    """Write the segment that belongs at ``place``, sealed if it is full; when this returns it is durable and ready."""
    workplace = place.directory / REPAIR_DIRECTORY
    workplace.mkdir()
    sync_directory(place.directory)
    built = SegmentPaths(workplace, place.first)
    rows = _write(built, info, blocks, chain_before) if blocks else NO_ROWS
    if len(rows) == info.segment_blocks:
        seal(built, info, partition, rows, chain_before)
    log_stays = bool(len(rows)) and _is_log_of(place, info, rows)  # also for what it says of the token topic
    if log_stays or built.manifest.exists():
        built.commits.unlink()
    stale = [old.name for old, new in zip(place.all, built.all, strict=True) if old.exists() and not new.exists()]
    if log_stays:
        stale.remove(place.commits.name)
    put_file(workplace / READY_FILE, canonical_json({"first": place.first, "stale": stale}))


def finish(directory: Path) -> list[Path]:
    """Put a segment that is ready in its place, if there is one, and clear up; return what was put aside."""
    workplace = directory / REPAIR_DIRECTORY
    if not workplace.exists():
        return []
    aside: list[Path] = []
    if (workplace / READY_FILE).exists():
        sync_directory(workplace)  # its writer may have died before the sync
        first, stale = _task(workplace / READY_FILE)
        place, built = SegmentPaths(directory, first), SegmentPaths(workplace, first)
        for old, new in zip(place.all, built.all, strict=True):
            if new.exists():
                aside += _replace(old, new)
            elif old.name in stale and old.exists():
                aside.append(put_aside(old))
        sync_directory(directory)
        (workplace / READY_FILE).unlink()
        sync_directory(workplace)
    for path in list(workplace.iterdir()):
        path.unlink()
    workplace.rmdir()
    sync_directory(directory)
    return aside


def _task(ready: Path) -> tuple[int, list[str]]:
    """Return the segment that is ready according to a file, and the old files without a successor."""
    try:
        task = read_json_file(ready)
        first, stale = task["first"], list(task["stale"])
    except (ValueError, TypeError, LookupError) as error:
        raise damaged(ready, f"it does not say what was repaired ({error!r})") from error
    if type(first) is not int or first < 0:
        raise damaged(ready, "it names no segment")
    return first, stale


def put_aside(path: Path) -> Path:
    """Keep a damaged file under another name, which is returned."""
    aside = _free_name(path)
    path.rename(aside)
    return aside


def link_aside(path: Path) -> Path:
    """Keep a damaged file under another name, which is returned, durably: its successor takes its place at once."""
    aside = _free_name(path)
    os.link(path, aside)
    sync_directory(path.parent)
    return aside


def _write(paths: SegmentPaths, info: StreamInfo, blocks: Sequence[Given], chain: bytes) -> Rows:
    chains = []
    for block in blocks:
        chain = next_hash(chain, block.tokens, block.entry)
        chains.append(chain)
    segment = OpenSegment(paths, info, NO_ROWS, 0)
    try:
        tokens = memoryview(b"".join(block.tokens for block in blocks))
        segment.append(tokens, [block.entry for block in blocks], chains, UNKNOWN)
        segment.commit()
    finally:
        segment.close()
    return segment.rows


def _is_log_of(paths: SegmentPaths, info: StreamInfo, rows: Rows) -> bool:
    """Whether a segment's commit log is undamaged and has the rows of these blocks."""
    if not paths.commits.exists():
        return False
    found = scan(read_regular(paths.commits), block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)
    return found.damage is None and found.rows.tobytes() == rows.tobytes()


def _replace(old: Path, new: Path) -> list[Path]:
    """Put ``new`` in the place of ``old``, atomically for readers; return where ``old`` went, if it existed."""
    if not old.exists():
        new.rename(old)
        return []
    if read_regular(old) == read_regular(new):
        new.unlink()
        return []
    aside = link_aside(old)
    new.rename(old)
    return [aside]


def _free_name(path: Path) -> Path:
    """Return a name that says that the file is broken and that no other broken one has."""
    names = (path.with_name(f"{path.name}{BROKEN}{number}") for number in count(2))
    plain = path.with_name(f"{path.name}{BROKEN}")
    return plain if not plain.exists() else next(name for name in names if not name.exists())
