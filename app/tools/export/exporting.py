"""An export: the sealed segments that a folder lacks, of a stream that has ended all, in a format of others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tokenmill.eras import EraRange
from tokenmill.errors import InputError
from tokenmill.samples.document_index import documents_beginning_in
from tokenmill.store import PartitionReader, StreamInfo, open_eras, open_partition, partitions_in, read_stream
from tokenmill.store.layout import partition_directory
from tokenmill.store.sealing import sealed_segments

from .folder import ExportedFile, ExportedSegment, ExportFolder, blaming_export
from .formats import BY_NAME, LATER_FILES, ExportFormat, FormatChoice, RowShape, What, block_rows, document_rows


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
        rows_written = sum(file.rows for one in self.written for file in _once_a_row(one.files))
        return {
            "folder": str(self.folder),
            "segments_written": len(self.written),
            "rows_written": rows_written,
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
    store: Path, stream: str, out: Path, *, to: FormatChoice, what: What, report: Report | None = None
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
    writer = BY_NAME[to](out.absolute(), RowShape(what, info.dtype, info.block_tokens if what == "blocks" else None))
    made_of = LATER_FILES.get(to, {}) | {
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
            if report is not None:
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
        rows = block_rows(reader, first, stop)
    else:
        documents = documents_beginning_in(reader, first, stop, end if end is None or reader.blocks >= end else None)
        if documents is None:
            return None
        index, count, unfinished = documents
        rows = document_rows(reader, index, count)
        result.unfinished += unfinished
    segment = ExportedSegment(reader.partition, first, chain_after, ())
    begin = next(rows, None)  # a document may be longer than a segment: none begins there then
    return segment if begin is None else replace(segment, files=tuple(writer.write(segment.name, chain([begin], rows))))
