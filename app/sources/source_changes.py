"""What a run knows of its sources, and how they have changed since: judged by content, never by time.

A run notes the length of each source, and a hash of that much. Later a source is the same, a file of lines that only
grew, or another one; a file that was renamed is recognized by its content. Only `look_at_sources` reads files.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Final, Literal, NamedTuple, TypeVar

import xxhash

from .file_sources import CHUNK_BYTES, CHUNK_ENTRIES, CHUNK_RULE, FileSource, Unreadable
from .items import DocumentSource
from .reading_order import READERS

ORDER: Final = f"{CHUNK_BYTES} {CHUNK_ENTRIES} {CHUNK_RULE} {READERS} rounds ids"
"""How runs order documents, deal them out (`app.tools.produce.producing.partition_of`), and name those without an id
(`PlaceIds`): a version that does so in another way does not continue a run of this one."""
PIECE_BYTES: Final = 1 << 20
NO_LINES: Final = -1
UNREADABLE: Final = "error"
"""Instead of the digest of a file that cannot be read, with the system's error number."""
SHOWN: Final = 5
"""Changes that a message names; the others are counted."""

NumberedName = tuple[str, int]
"""A source's name, and how many of that name came before it: a path may be given twice."""
Named = TypeVar("Named", "KnownSource", DocumentSource)
ChangeKind = Literal["new", "grown", "changed", "gone", "renamed"]


class KnownSource(NamedTuple):
    """A source, as it was when a run looked at it."""

    name: str
    size: int
    """Bytes that belong to the run."""
    modified: int
    """In nanoseconds: while this and the size are the same, the content is not read again."""
    digest: str
    lines: int = NO_LINES
    """Line ends up to `size`; `NO_LINES` where the source is no file of lines."""
    ended: bool = True
    entry: int = 0
    """Lines that earlier parts of the run have sent."""
    byte: int = 0
    sent_now: bool = True
    """Whether this part of the run sends what is between `byte` and `size`."""


class _FilePrefix(NamedTuple):
    """A file up to some byte, and the next two bytes."""

    digest: str
    lines: int
    ended: bool
    goes_on_with: bytes


@dataclass(frozen=True, slots=True)
class _SourceLook:
    """A source as it is now."""

    seen: KnownSource
    cuts: Mapping[int, _FilePrefix] = field(default_factory=dict)
    """By size: the file up to where a run knew a source to end."""
    unchanged: bool = False  # size and time are what the run knows; the content was not read


class SourceChange(NamedTuple):
    """How a source has changed."""

    kind: ChangeKind
    name: str
    text: str


class SourceComparison(NamedTuple):
    """How all sources have changed."""

    changes: list[SourceChange]
    present: list[KnownSource]
    """The sources that are there, as a run knows them once it has sent what is new; one that has changed, as it was."""

    def of(self, *kinds: ChangeKind) -> list[SourceChange]:
        """Return the changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def look_at_sources(
    sources: Sequence[DocumentSource], known: Sequence[KnownSource] = (), *, whole_lines: bool = False
) -> list[_SourceLook]:
    """Return what the sources are now; reads what may have changed, with ``whole_lines`` to its last line end."""
    before = by_name(known)
    there = by_name(sources)
    gone = {seen.size for name, seen in before.items() if name not in there}

    def one(name: NumberedName, source: DocumentSource) -> _SourceLook:
        seen = before.get(name)
        return look_at_source(source, seen, gone if seen is None else {seen.size}, whole_lines=whole_lines)

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(one, there, there.values()))


def by_name(sources: Iterable[Named]) -> dict[NumberedName, Named]:
    """Return the sources by their names, each with how many equal ones came before it."""
    counts: Counter[str] = Counter()
    found = {}
    for source in sources:
        found[source.name, counts[source.name]] = source
        counts[source.name] += 1
    return found


def look_at_source(
    source: DocumentSource, seen: KnownSource | None = None, sizes: Iterable[int] = (), *, whole_lines: bool = False
) -> _SourceLook:
    """Return what one source is now; its content is cut at ``sizes`` as well, unless it is unchanged since ``seen``."""
    if not isinstance(source, FileSource):
        return _SourceLook(KnownSource(source.name, source.size, 0, source.signature().hex()))
    try:
        if source.root:
            source.open().close()
        status = Path(source.path).stat()
        if not S_ISREG(status.st_mode):  # a pipe: what is read of it now would be missing later
            return _SourceLook(KnownSource(source.name, 0, 0, source.signature().hex()))
        if seen is not None and (seen.size, seen.modified) == (status.st_size, status.st_mtime_ns):
            return _SourceLook(seen, unchanged=True)
        end = status.st_size
        if whole_lines and source.grows:
            end = max(_last_line_end(source.path, end), seen.size if seen is not None and seen.size <= end else 0)
        cuts = _cuts(source.path, {size for size in sizes if size <= end} | {end})
    except OSError as error:
        return _SourceLook(KnownSource(source.name, 0, 0, f"{UNREADABLE} {error.errno}"))
    now = cuts[end]
    lines = (now.lines, now.ended) if source.grows else (NO_LINES, True)
    return _SourceLook(KnownSource(source.name, end, status.st_mtime_ns, now.digest, *lines), cuts)


def _cuts(path: str, sizes: Iterable[int]) -> dict[int, _FilePrefix]:
    """Return the file up to each of these sizes; reads it once. A file that shrinks meanwhile has other hashes."""
    content, lines, last, at = xxhash.xxh3_128(), 0, b"\n", 0
    found: dict[int, _FilePrefix] = {}
    with Path(path).open("rb", buffering=0) as file:
        for size in sorted(sizes):
            while at < size and (piece := file.read(min(PIECE_BYTES, size - at))):
                content.update(piece)
                lines, last, at = lines + piece.count(b"\n"), piece[-1:], at + len(piece)
            found[size] = _FilePrefix(content.hexdigest(), lines, last == b"\n", file.read(2))
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


def compare_sources(known: Sequence[KnownSource], looks: Sequence[_SourceLook]) -> SourceComparison:
    """Return how the sources that a run knows have changed, and which sources are new."""
    before = by_name(known)
    there = dict(zip(by_name(one.seen for one in looks), looks, strict=True))
    gone = {name: seen for name, seen in before.items() if name not in there}
    by_size: dict[int, list[NumberedName]] = defaultdict(list)
    for name, seen in gone.items():
        by_size[seen.size].append(name)
    changes: list[SourceChange] = []
    present: list[KnownSource] = []
    for name, one in there.items():
        old = name if name in before else _renamed(one, gone, by_size)
        if old is None:
            changes.append(SourceChange("new", one.seen.name, f"{one.seen.name} is new"))
            present.append(one.seen._replace(entry=0, byte=0, sent_now=True))
            continue
        seen = before[old]
        if gone.pop(old, None) is not None:
            changes.append(SourceChange("renamed", one.seen.name, f"{one.seen.name} was called {seen.name}"))
        change, after = _compared(seen, one)
        changes += [change] if change is not None else []
        present.append(after)
    changes += [SourceChange("gone", seen.name, f"{seen.name} is gone") for seen in gone.values()]
    return SourceComparison(changes, present)


def _renamed(
    one: _SourceLook, gone: Mapping[NumberedName, KnownSource], by_size: Mapping[int, Sequence[NumberedName]]
) -> NumberedName | None:
    """Return which of the missing sources this one is, or begins with; the longest of them."""
    for size in sorted((size for size in one.cuts if size > 0), reverse=True):
        for name in by_size.get(size, ()):
            same = name in gone and gone[name].digest == one.cuts[size].digest
            if same and (size >= one.seen.size or NO_LINES not in (gone[name].lines, one.seen.lines)):  # lines may grow
                return name
    return None


def _compared(seen: KnownSource, one: _SourceLook) -> tuple[SourceChange | None, KnownSource]:
    now = one.seen
    known = seen._replace(name=now.name, entry=0, byte=0, sent_now=False)
    if one.unchanged or (seen.size, seen.digest) == (now.size, now.digest):
        return None, known._replace(modified=now.modified)
    sizes = f"{seen.size:,} bytes then, {now.size:,} now"
    cut = one.cuts.get(seen.size)
    if (why := _why_another(seen, now, cut)) or cut is None:
        return SourceChange("changed", now.name, f"{now.name} has changed ({sizes}): {why}"), known
    grown = now._replace(entry=cut.lines, byte=seen.size, sent_now=True)
    return SourceChange("grown", now.name, f"{now.name} grew ({sizes}; what it began with is the same)"), grown


def _why_another(seen: KnownSource, now: KnownSource, cut: _FilePrefix | None) -> str:
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


def changes_line(changes: Sequence[SourceChange]) -> str:
    """Return the changes in a line."""
    more = f"; and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
    return "; ".join(change.text for change in changes[:SHOWN]) + more


def sources_to_send(seen: Sequence[KnownSource], sources: Sequence[DocumentSource]) -> list[DocumentSource]:
    """Return what a part of a run sends, from the sources that are there."""
    there = by_name(sources)
    found: list[DocumentSource] = []
    for name, one in by_name(seen).items():
        if one.sent_now:
            source = there.get(name) or Unreadable(one.name, "cannot be read: it is gone")
            found.append(source.part(one.entry, one.byte, one.size) if isinstance(source, FileSource) else source)
    return found


def utf8(name: str) -> str:
    """Return text that UTF-8 can spell: what it cannot is a question mark."""
    return name.encode("utf-8", "replace").decode()
