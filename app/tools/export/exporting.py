"""An export: the sealed segments that a folder lacks, of a stream that has ended all, in a format of others.

In the folder's ``_tokenmill``, ``export.json`` says what is exported and how, and ``<partition>-<first block>.json``
lists the files of a segment once these are durable.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias

import xxhash

from tokenmill.eras import EraRange
from tokenmill.errors import DiskError, InputError
from tokenmill.recipe import canonical_json
from tokenmill.samples.document_index import documents_beginning_in
from tokenmill.store import PartitionReader, StreamInfo, open_eras, open_partition, partitions_in, read_stream
from tokenmill.store.layout import TEMPORARY, PartitionLock, partition_directory, put_file, sync_directory, sync_way_to
from tokenmill.store.sealing import sealed_segments
from tokenmill.untrusted import read_json_file

from . import formats
from .formats import ExportContent, ExportedFile, ExportFormat, FormatChoice, What

STATE_FOLDER: Final = "_tokenmill"
EXPORT_FILE: Final = "export.json"
FORMAT: Final = 1
"""Version of the files in `STATE_FOLDER`, and of the files that a segment becomes."""


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """The files of one segment."""

    partition: int
    first: int
    chain_after: str
    """Chain hash after its last block: with the same one, two stores hold the same blocks up to there."""
    files: tuple[ExportedFile, ...]

    @property
    def name(self) -> str:
        """Name of the segment in an export; its files begin with it."""
        return f"{self.partition}-{self.first:012d}"


class ExportFolder:
    """A folder that this process may add files to, until the block's end."""

    def __init__(self, path: Path, made_of: Mapping[str, Any]) -> None:
        """Open or begin an export's folder; ``made_of``: stream and options, which decide the files, as JSON types."""
        self.path = path.absolute()
        self._state = self.path / STATE_FOLDER
        self._made_of = made_of
        with blaming_export(self.path), ExitStack() as locks:
            self._require_ours()
            self._state.mkdir(parents=True, exist_ok=True)
            locks.enter_context(PartitionLock(self._state))
            if not (self._state / EXPORT_FILE).exists():
                put_file(self._state / EXPORT_FILE, canonical_json({"format": FORMAT, **made_of}) + b"\n")
            sync_way_to(self._state)
            self._require_ours()  # another process may have been quicker
            for left in (*self.path.rglob(f".*{TEMPORARY}"), *self._state.glob(f"*{TEMPORARY}")):
                left.unlink()  # of a run that was killed
            self._locks = locks.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def segments(self) -> dict[tuple[int, int], ExportedSegment]:
        """Return the segments whose files are all there, by partition and first block, in this order."""
        found = map(self._read, self._state.glob("*-*.json"))
        return dict(sorted(((segment.partition, segment.first), segment) for segment in found))

    def add(self, segment: ExportedSegment) -> None:
        """Note that all files of a segment are in their places; on return this is durable."""
        for folder in {(self.path / file.name).parent for file in segment.files}:
            sync_directory(folder)
        put_file(self._state / f"{segment.name}.json", canonical_json(asdict(segment)) + b"\n")

    def content_of(self, segments: Mapping[tuple[int, int], ExportedSegment]) -> ExportContent:
        """Return what the folder holds with these segments."""
        ordered = [segment for _, segment in sorted(segments.items())]
        chains = [[segment.name, segment.chain_after] for segment in ordered]
        identity = xxhash.xxh3_64_hexdigest(canonical_json([dict(self._made_of), chains]))
        return ExportContent([file for segment in ordered for file in segment.files], identity)

    def _require_ours(self) -> None:
        file = self._state / EXPORT_FILE
        try:
            known = read_json_file(file)
        except FileNotFoundError:
            if self.path.is_dir() and any(name != STATE_FOLDER for name in os.listdir(self.path)):  # noqa: PTH208
                raise InputError(
                    f"{self.path} is not empty, and holds no export ({STATE_FOLDER}/{EXPORT_FILE} is missing): name a "
                    "new folder with --out"
                ) from None
            return
        except NotADirectoryError:
            raise InputError(f"{self.path} is a file, or below one: name a folder with --out") from None
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}): name a new folder with --out") from error
        wanted = {"format": FORMAT, **self._made_of}
        if known != wanted:
            have = known if isinstance(known, dict) else {}
            names = [name for name in wanted if have.get(name) != wanted[name]]
            there, here = (", ".join(f"{n} {values.get(n)!r}" for n in names) for values in (have, wanted))
            raise InputError(
                f"{self.path} holds another export: {there} there, {here} asked for. Name another folder with --out, "
                "or give the options that it was made with"
            )

    def _read(self, file: Path) -> ExportedSegment:
        advice = f"remove {file}, and the same command writes the segment again"
        try:
            values = read_json_file(file)
            files = tuple(ExportedFile(**one) for one in values.pop("files"))
            segment = ExportedSegment(**values, files=files)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(f"{file} is no list of files ({error}): {advice}") from error
        for one in segment.files:
            path = self.path / one.name
            size = path.stat().st_size if path.exists() else None
            if size != one.size:
                what = "is missing" if size is None else f"has {size} bytes, and was written with {one.size}"
                raise InputError(f"{path} {what}: {advice}")
        return segment


@contextmanager
def blaming_export(folder: Path) -> Iterator[None]:
    """Turn the system's errors inside into a `DiskError` that says what to do."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        advice = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "let this user write there"
        raise DiskError(
            f"{folder} cannot be written to ({why}): {advice}, and give the same command again; the segments that are "
            "there stay, and it goes on behind them"
        ) from error


@dataclass(slots=True)
class Exported:
    """What an export did, and what its folder holds then."""

    folder: Path
    written: list[ExportedSegment] = field(default_factory=list)
    files: Sequence[ExportedFile] = ()
    unfinished: int = 0
    """Documents of a stream that has ended, in what this call wrote, of whose ends the stream has no block."""
    waiting: list[str] = field(default_factory=list)
    """Segments in which documents begin whose end is in no block yet, or whose last blocks are still to come."""

    @property
    def rows(self) -> int:
        """Rows that the folder holds."""
        return sum(file.rows for file in _once_a_row(self.files))

    @property
    def tokens(self) -> int:
        """Tokens that the folder holds."""
        return sum(file.tokens for file in _once_a_row(self.files))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "folder": str(self.folder),
            "segments_written": len(self.written),
            "rows_written": sum(file.rows for one in self.written for file in _once_a_row(one.files)),
            "files": len(self.files),
            "rows": self.rows,
            "tokens": self.tokens,
            "unfinished": self.unfinished,
            "waiting": self.waiting,
        }


def _once_a_row(files: Sequence[ExportedFile]) -> Iterable[ExportedFile]:
    """Return the files that have rows of their own: of several with one name and other suffixes, one."""
    return {file.name.rpartition(".")[0]: file for file in files}.values()


class _Segment(NamedTuple):
    """What is exported of a segment: its blocks ``[first, stop)``."""

    first: int
    stop: int
    chain_after: str


Report: TypeAlias = Callable[[int, int, str], None]


def export(
    store: Path, stream: str, out: Path, *, to: FormatChoice, what: What, report: Report = lambda *_: None
) -> Exported:
    """Write the segments of a stream into a folder, those that it lacks; on return they are durable.

    Names and content of the files are a function of the segments, from any store and in any number of calls. A document
    is in the file of the segment in which it begins. Index files name only files that are whole. ``report`` is called
    with the segments that are done, those that there are to do, and the one that was written last.

    Raises InputError where the folder holds something else, nothing is sealed or has ended yet, or a library is
    missing; StoreError or DamagedError where the store lacks the stream, or is damaged; DiskError where the folder
    cannot be written to (the same call goes on); LockedError where another process exports into it.
    """
    info, eras = read_stream(store, stream), open_eras(store, stream)
    ends = eras.era(eras.eras - 1).ranges if eras.ended else ()
    segments = {
        partition: _segments(store, info, partition, ends[partition] if partition < len(ends) else None)
        for partition in partitions_in(store, stream)
    }
    if not any(segments.values()) and eras.ended:
        raise InputError(f"{stream} in {store} has ended, and has no block: there is nothing to export")
    if not any(segments.values()):
        most = max((open_partition(store, stream, partition).blocks for partition in segments), default=0)
        raise InputError(
            f"{stream} has no sealed segment in {store} yet: a segment has {info.segment_blocks} blocks "
            f"(segment_blocks), and the fullest partition here has {most}. Wait for more, close the stream (then all "
            "of it is exported), or use a stream with smaller segments"
        )
    shape = formats.RowShape(what, info.dtype, info.block_tokens if what == "blocks" else None)
    writer = formats.BY_NAME[to](out.absolute(), shape)
    made_of = formats.LATER_FILES.get(to, {}) | {
        "stream": stream,
        "fingerprint": info.fingerprint.hex(),
        "segment_blocks": info.segment_blocks,
        "block_tokens": info.block_tokens,
        "dtype": info.dtype.name,
        "to": to,
        "what": what,
    }
    with ExportFolder(out, made_of) as folder, blaming_export(out):
        known = folder.segments()
        todo = []
        for partition, one in ((partition, one) for partition, found in segments.items() for one in found):
            written = known.get((partition, one.first))
            if written is None:
                todo.append((partition, one))
            elif written.chain_after != one.chain_after:
                raise InputError(
                    f"{out} holds the segment at block {one.first} of partition {partition} with other blocks than "
                    f"{store}: they are copies of two streams with one name and recipe. Name a new folder with --out"
                )
        result = Exported(folder.path)
        for partition, one in todo:
            end = ends[partition].stop if partition < len(ends) else None
            segment = _write(writer, open_partition(store, stream, partition), one, end, result)
            if segment is None:
                result.waiting.append(f"{partition}/{one.first}")
                continue
            folder.add(segment)
            known[partition, one.first] = segment
            result.written.append(segment)
            report(len(result.written), len(todo), segment.name)
        content = folder.content_of(known)
        result.files = content.files
        writer.index(content)
    return result


def _segments(store: Path, info: StreamInfo, partition: int, end: EraRange | None) -> list[_Segment]:
    """Return the sealed segments of a partition; of one that has ended, all up to its end."""
    sealed = sealed_segments(partition_directory(store, info.name, partition), info, partition)
    found = [_Segment(one.first, one.first + one.blocks, one.chain_after) for one in sealed]
    if end is None:
        return found
    found = [one for one in found if one.stop <= end.stop]
    rest = end.stop % info.segment_blocks
    return [*found, _Segment(end.stop - rest, end.stop, end.after.hex())] if rest else found


def _write(
    writer: ExportFormat, reader: PartitionReader, part: _Segment, end: int | None, result: Exported
) -> ExportedSegment | None:
    """Write the files of a segment; None where a document of it goes on behind what is committed, or blocks are."""
    first, stop, chain_after = part
    if reader.blocks < stop:
        return None
    if writer.shape.what == "blocks":
        rows = formats.block_rows(reader, first, stop)
    else:
        documents = documents_beginning_in(reader, first, stop, end if end is None or reader.blocks >= end else None)
        if documents is None:
            return None
        index, count, unfinished = documents
        rows = formats.document_rows(reader, index, count)
        result.unfinished += unfinished
    segment = ExportedSegment(reader.partition, first, chain_after, ())
    begin = next(rows, None)  # a document may be longer than a segment: none begins there then
    return segment if begin is None else replace(segment, files=tuple(writer.write(segment.name, chain([begin], rows))))
