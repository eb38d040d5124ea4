"""What a run knows of its sources, and how they have changed since: judged by content, never by time.

A run notes the length of each source, and a hash of that much. Later a source is the same, a file of lines that only
grew, or another one; a file that was renamed is recognized by its content. Only `look` reads files; the rest is pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Final, Literal, NamedTuple

import xxhash

from .items import Chunk, Place, Refused, Source
from .reading_order import READERS
from .sources import FileSource

PIECE_BYTES: Final = 1 << 20
NO_LINES: Final = -1
UNREADABLE: Final = "error"
"""What stands for the digest of a file that cannot be read, with the system's number of the error."""
SHOWN: Final = 5
"""Changes that a message names; of the others it says how many there are."""

Name = tuple[str, int]
"""A source's name, and how many of that name came before it: somebody may give a path twice."""
Kind = Literal["new", "grown", "changed", "gone", "renamed"]


class Seen(NamedTuple):
    """A source, as it was when a run looked at it."""

    name: str
    size: int
    """Bytes that belong to the run."""
    modified: int
    """Time of the last change, in nanoseconds: while it and the size are the same, nobody reads the content again."""
    digest: str
    """Of the content up to `size`."""
    lines: int = NO_LINES
    """Line ends up to `size`; `NO_LINES` where the source is no file of lines."""
    ended: bool = True
    """Whether the last line has its end."""
    entry: int = 0
    """Lines that an earlier part of the run has sent."""
    byte: int = 0
    """Where these end."""
    sent_now: bool = True
    """Whether this part of the run sends what lies between `byte` and `size`."""


class Gone:
    """A source that is gone, of which everything was sent: it keeps its place in the order."""

    size = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def signature(self) -> bytes:
        """Return nothing."""
        return b""

    def chunks(self, start: Place) -> Iterator[Chunk]:
        """Yield that there is nothing to read."""
        yield Chunk([Refused(self.name, "cannot be read: it is gone", broken=True)], start, 0, 0, last=True)


class Cut(NamedTuple):
    """What a file is up to some byte."""

    digest: str
    lines: int
    ended: bool
    goes_on_with: bytes
    """The next two bytes."""


@dataclass(frozen=True, slots=True)
class Look:
    """A source as it is now."""

    seen: Seen
    cuts: Mapping[int, Cut] = field(default_factory=dict)
    """By size: what it is up to where a run knew a source to end."""
    unchanged: bool = False
    """Size and time are what the run knows; nobody has read it."""


class Change(NamedTuple):
    """What became of a source."""

    kind: Kind
    name: str
    text: str
    """For people."""


class Comparison(NamedTuple):
    """What became of all of them."""

    changes: list[Change]
    present: list[Seen]
    """What a run knows of the sources that are there, after it has also sent what is new: `Seen.sent_now` says what
    that is. One that has changed is known as it was."""

    def of(self, *kinds: Kind) -> list[Change]:
        """Return the changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def look(sources: Sequence[Source], known: Sequence[Seen] = (), *, whole_lines: bool = False) -> list[Look]:
    """Return what the sources are now; those are read whose size or time is not what is known of them.

    With ``whole_lines``, what a file of lines has behind its last line end is left for later.
    """
    before = dict(zip(named(seen.name for seen in known), known, strict=True))
    names = named(source.name for source in sources)
    gone = {seen.size for name, seen in before.items() if name not in set(names)}

    def one(name: Name, source: Source) -> Look:
        seen = before.get(name)
        return _look(source, seen, gone if seen is None else {seen.size}, whole_lines=whole_lines)

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(one, names, sources))


def named(names: Iterable[str]) -> list[Name]:
    """Return the names, each with how many equal ones came before it."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        found.append((name, counts[name]))
        counts[name] += 1
    return found


def _look(source: Source, seen: Seen | None, sizes: Iterable[int], *, whole_lines: bool) -> Look:
    if not isinstance(source, FileSource):
        return Look(Seen(source.name, source.size, 0, source.signature().hex()))
    try:
        status = Path(source.path).stat()
        if not S_ISREG(status.st_mode):  # a pipe: what is read of it now would be missing later
            return Look(Seen(source.name, 0, 0, source.signature().hex()))
        if seen is not None and (seen.size, seen.modified) == (status.st_size, status.st_mtime_ns):
            return Look(seen, unchanged=True)
        end = status.st_size
        if whole_lines and source.grows:
            end = max(_last_line_end(source.path, end), seen.size if seen is not None and seen.size <= end else 0)
        cuts = _cuts(source.path, {size for size in sizes if size <= end} | {end})
    except OSError as error:
        return Look(Seen(source.name, 0, 0, f"{UNREADABLE} {error.errno}"))
    now = cuts[end]
    lines = (now.lines, now.ended) if source.grows else (NO_LINES, True)
    return Look(Seen(source.name, end, status.st_mtime_ns, now.digest, *lines), cuts)


def _cuts(path: str, sizes: Iterable[int]) -> dict[int, Cut]:
    """Return what a file is up to each of these bytes; reads it once. What it lost meanwhile makes other hashes."""
    content, lines, last, at = xxhash.xxh3_128(), 0, b"\n", 0
    found: dict[int, Cut] = {}
    with Path(path).open("rb", buffering=0) as file:
        for size in sorted(sizes):
            while at < size and (piece := file.read(min(PIECE_BYTES, size - at))):
                content.update(piece)
                lines, last, at = lines + piece.count(b"\n"), piece[-1:], at + len(piece)
            found[size] = Cut(content.hexdigest(), lines, last == b"\n", file.read(2))
            file.seek(at)
    return found


def _last_line_end(path: str, size: int) -> int:
    with Path(path).open("rb", buffering=0) as file:
        while size > 0:
            start = max(0, size - PIECE_BYTES)
            file.seek(start)
            found = file.read(size - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
    return 0


def compare(known: Sequence[Seen], looks: Sequence[Look]) -> Comparison:
    """Return what became of the sources that a run knows, and which are new."""
    before = dict(zip(named(seen.name for seen in known), known, strict=True))
    there = dict(zip(named(one.seen.name for one in looks), looks, strict=True))
    gone = {name: seen for name, seen in before.items() if name not in there}
    by_size: dict[int, list[Name]] = defaultdict(list)
    for name, seen in gone.items():
        by_size[seen.size].append(name)
    changes: list[Change] = []
    present: list[Seen] = []
    for name, one in there.items():
        old = name if name in before else _renamed(one, gone, by_size)
        if old is None:
            changes.append(Change("new", one.seen.name, f"{one.seen.name} is new"))
            present.append(one.seen._replace(entry=0, byte=0, sent_now=True))
            continue
        seen = before[old]
        if gone.pop(old, None) is not None:
            changes.append(Change("renamed", one.seen.name, f"{one.seen.name} was called {seen.name}"))
        change, after = _compared(seen, one)
        changes += [change] if change is not None else []
        present.append(after)
    changes += [Change("gone", seen.name, f"{seen.name} is gone") for seen in gone.values()]
    return Comparison(changes, present)


def _renamed(one: Look, gone: Mapping[Name, Seen], by_size: Mapping[int, Sequence[Name]]) -> Name | None:
    """Return which of the sources that are gone this one is, or begins with; the longest of them."""
    for size in sorted((size for size in one.cuts if size > 0), reverse=True):
        for name in by_size.get(size, ()):
            if name in gone and gone[name].digest == one.cuts[size].digest:
                grown = size < one.seen.size
                if not grown or (gone[name].lines != NO_LINES and one.seen.lines != NO_LINES):
                    return name
    return None


def _compared(seen: Seen, one: Look) -> tuple[Change | None, Seen]:
    """Return what became of a source, and what is known of it from then on."""
    now = one.seen
    known = seen._replace(name=now.name, entry=0, byte=0, sent_now=False)
    if one.unchanged or (seen.size, seen.digest) == (now.size, now.digest):
        return None, known._replace(modified=now.modified)
    sizes = f"{seen.size:,} bytes then, {now.size:,} now"
    cut = one.cuts.get(seen.size)
    if (why := _why_another(seen, now, cut)) or cut is None:
        return Change("changed", now.name, f"{now.name} has changed ({sizes}): {why}"), known
    grown = now._replace(entry=cut.lines, byte=seen.size, sent_now=True)
    return Change("grown", now.name, f"{now.name} grew ({sizes}; what it began with is the same)"), grown


def _why_another(seen: Seen, now: Seen, cut: Cut | None) -> str:
    """Return why a source that is not the same did not just grow; empty if it did."""
    if now.digest.startswith(UNREADABLE):
        return "it cannot be read now"
    if now.size < seen.size:
        return "it is shorter"
    if cut is None or cut.digest != seen.digest:
        where = ", at its beginning or in the middle" if now.size > seen.size else ""
        return f"its content is another one{where}"
    if NO_LINES in (seen.lines, now.lines):
        return "it grew, and is no file of lines"
    goes_on = not seen.ended and not cut.goes_on_with.startswith((b"\n", b"\r\n"))
    return "it grew, and its last line, which had no end, goes on" if goes_on else ""


def told(changes: Sequence[Change]) -> str:
    """Return the changes in a line."""
    more = f"; and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
    return "; ".join(change.text for change in changes[:SHOWN]) + more


def parts(seen: Sequence[Seen], sources: Sequence[Source]) -> list[Source]:
    """Return what a part of a run sends, from the sources that are there."""
    there = dict(zip(named(source.name for source in sources), sources, strict=True))
    found: list[Source] = []
    for name, one in zip(named(one.name for one in seen), seen, strict=True):
        if not one.sent_now:
            continue
        source = there.get(name) or Gone(one.name)
        found.append(source.part(one.entry, one.byte, one.size) if isinstance(source, FileSource) else source)
    return found
