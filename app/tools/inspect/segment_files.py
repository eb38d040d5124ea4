"""What a store's files say of themselves; needs no broker."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import InputError
from tokenmill.store import StreamInfo, read_stream
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.rows import chain_after
from tokenmill.store.segment import Segment
from tokenmill.store.start import read_start
from tokenmill.wire.pieces import decode_entry

from .samples import beginning, decode, engine_in

_PARTITION_DEPTH = 3  # <store>/<stream>/<partition>


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment of a store."""

    stream: str
    partition: int
    path: str
    """Of its tokens."""
    first: int
    blocks: int
    sealed: bool
    block_tokens: int
    dtype: str
    fingerprint: str
    token_bytes: int
    document_bytes: int
    documents: int
    """Documents that begin in it."""
    offsets: tuple[int, int] | None
    """Offsets of the first and the last source record in it; None without blocks."""
    chain_before: str | None
    """Chain hash before the first block; None where only the segment before could tell."""
    chain_after: str | None
    sample: str
    """The beginning of its first block as text."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self)


def inspect_segment(path: Path) -> SegmentReport:
    """Return what one segment holds; ``path`` is any of its files. Every block's checksums are checked.

    Raises:
        InputError: the path is no segment of a store.
        DamagedError: the segment is not what its checksums say.
        StoreError: the stream's description is missing or of another format.

    """
    path = path.absolute()
    firsts = segment_firsts([path.name])
    if not firsts or not path.is_file():
        raise InputError(f"{path} is no file of a segment: name <store>/<stream>/<partition>/<first block>.bin")
    return _report(SegmentPaths(path.parent, firsts[0]), *_place(path.parent))


def inspect_partition(directory: Path) -> Sequence[SegmentReport]:
    """Return what each segment in a partition's directory holds.

    Raises:
        InputError: it is no such directory.
        DamagedError, StoreError: as `inspect_segment`.

    """
    directory = directory.absolute()
    if not directory.is_dir():
        raise InputError(f"{directory} is no directory: name <store>/<stream>/<partition>")
    info, partition = _place(directory)
    start = read_start(directory, info, partition).block
    firsts = [first for first in segment_firsts(path.name for path in directory.iterdir()) if first >= start]
    return [_report(SegmentPaths(directory, first), info, partition) for first in firsts]


def _place(directory: Path) -> tuple[StreamInfo, int]:
    if len(directory.parts) <= _PARTITION_DEPTH or not directory.name.isdigit():
        raise InputError(f"{directory} is no partition of a stream: name <store>/<stream>/<partition>")
    return read_stream(directory.parent.parent, directory.parent.name), int(directory.name)


def _report(paths: SegmentPaths, info: StreamInfo, partition: int) -> SegmentReport:
    segment = Segment(paths, info, partition)
    documents = 0
    offsets: list[int] = []
    for number in range(segment.blocks):
        segment.check_tokens(number)
        segment.check_entry(number)
        pieces = decode_entry(segment.entry(number))
        documents += sum(piece.position == 0 for piece in pieces)
        offsets = [offsets[0] if offsets else pieces[0].offset, pieces[-1].offset]
    before = segment.manifest.chain_before if segment.manifest else None
    start = read_start(paths.directory, info, partition)
    if paths.first == start.block:
        before = start.chain.hex()
    store = paths.directory.parent.parent
    return SegmentReport(
        stream=info.name,
        partition=partition,
        path=str(paths.tokens),
        first=paths.first,
        blocks=segment.blocks,
        sealed=segment.manifest is not None,
        block_tokens=info.block_tokens,
        dtype=info.dtype.name,
        fingerprint=info.fingerprint.hex(),
        token_bytes=segment.blocks * info.block_bytes,
        document_bytes=int(segment.rows["docs_end"][-1]) if segment.blocks else 0,
        documents=documents,
        offsets=(offsets[0], offsets[1]) if offsets else None,
        chain_before=before,
        chain_after=chain_after(segment.rows, -1).hex() if segment.blocks else before,
        sample=beginning(decode(engine_in(store, info), segment.tokens[0])) if segment.blocks else "",
    )
