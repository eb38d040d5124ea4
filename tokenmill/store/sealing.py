"""One segment, written: its commit log, appending and committing, and sealing: index, Megatron index, last manifest.

The commit log says which bytes of an unsealed segment count. A record, which ends with a row for each block, is written
when its tokens and document table are on disk, and is on disk before the next one is written (docs/format.md).

In the ``.idx``, which has the layout of Megatron-LM (``megatron/core/datasets/indexed_dataset.py``), every block is one
sequence and one document of its own: Megatron's samplers need documents, and its format has no room for ours.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.recipe import canonical_json
from tokenmill.store import layout
from tokenmill.store.store import StreamInfo, read_start
from tokenmill.untrusted import MAX_JSON_BYTES, open_regular, parse_json, read_regular, regular_file

BLOCK_ROW: Final = np.dtype([("docs_end", "<u8"), ("tokens_crc", "<u4"), ("entry_crc", "<u4"), ("chain", "V16")])

Rows: TypeAlias = npt.NDArray[np.void]


def make_rows(tokens: memoryview, entries: Sequence[bytes], chains: Sequence[bytes], docs_bytes: int) -> Rows:
    """Return the rows of blocks with ``tokens`` back to back, behind ``docs_bytes`` of document table."""
    rows = np.empty(len(entries), BLOCK_ROW)
    size = len(tokens) // max(len(entries), 1)
    rows["docs_end"] = docs_bytes + np.cumsum(np.fromiter(map(len, entries), np.uint64, len(entries)))
    rows["tokens_crc"] = [crc32(tokens[number * size : (number + 1) * size]) for number in range(len(entries))]
    rows["entry_crc"] = [crc32(entry) for entry in entries]
    rows["chain"] = np.frombuffer(b"".join(chains), "V16")
    return rows


def entry_span(rows: Rows, number: int) -> tuple[int, int]:
    """Return where the entry of the segment's block ``number`` (counted from 0) begins and ends in its table."""
    start = int(rows["docs_end"][number - 1]) if number else 0
    return start, int(rows["docs_end"][number])


def chain_after(rows: Rows, number: int) -> bytes:
    """Return the chain hash after the segment's block ``number`` (counted from 0)."""
    return bytes(rows["chain"][number].tobytes())


MAGIC: Final = b"TMc1"
ALIGNMENT: Final = 32
UNKNOWN: Final = -1
"""The source offset of blocks that no message brought."""
_HEADER: Final = Struct("<4sIQQQ16sqII")
_CRC: Final = Struct("<I")
_CRC_AT: Final = _HEADER.size - _CRC.size


@dataclass(frozen=True, slots=True)
class Commit:
    """One record; docs/format.md says what its fields are."""

    blocks: int
    bin_bytes: int
    docs_bytes: int
    chain: bytes
    source_offset: int
    rows: Rows

    def encode(self) -> bytes:
        """Return the record's bytes."""
        size = _HEADER.size + self.rows.nbytes
        fields = (self.blocks, self.bin_bytes, self.docs_bytes, self.chain, self.source_offset, len(self.rows))
        record = bytearray(_HEADER.pack(MAGIC, size, *fields, 0) + self.rows.tobytes())
        _CRC.pack_into(record, _CRC_AT, crc32(record))
        return bytes(record)


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of a commit log."""

    commits: list[Commit]
    """The longest prefix of records that are whole and continue each other."""
    end: int
    damage: str | None
    """Why what follows the prefix cannot be a record whose writing was cut off; None if it can."""

    @property
    def committed_bytes(self) -> tuple[int, int]:
        """Of tokens and of document table."""
        return (self.commits[-1].bin_bytes, self.commits[-1].docs_bytes) if self.commits else (0, 0)

    @property
    def rows(self) -> Rows:
        """The rows of all blocks that these commits cover."""
        return np.concatenate([np.empty(0, BLOCK_ROW), *(commit.rows for commit in self.commits)])


def scan(log: bytes, *, block_bytes: int, segment_blocks: int, blocks: int = 0, docs_bytes: int = 0) -> Scan:
    """Read the records in ``log``, which begins after ``blocks`` committed blocks and ``docs_bytes`` of their table.

    An invalid record counts as never written only if nothing valid follows it: each is synced before the next.
    """
    commits: list[Commit] = []
    at = 0
    while (commit := _decode(log, at)) is not None:
        if not _continues(commit, blocks, docs_bytes, block_bytes) or commit.blocks > segment_blocks:
            return Scan(commits, at, f"the commit record at byte {at} does not continue the one before it")
        commits.append(commit)
        blocks, docs_bytes = commit.blocks, commit.docs_bytes
        at += _HEADER.size + commit.rows.nbytes
    later = _find_valid(log, at + ALIGNMENT)
    if later is not None:
        return Scan(commits, at, f"the commit record at byte {at} is damaged (a whole one follows at byte {later})")
    return Scan(commits, at, None)


def claimed_blocks(log: bytes) -> int:
    """Return the most blocks that any whole record in a log, damaged or not, names as committed."""
    claimed, at = 0, _find_valid(log, 0)
    while at is not None:
        commit = _decode(log, at)
        claimed = max(claimed, commit.blocks if commit is not None else 0)
        at = _find_valid(log, at + ALIGNMENT)
    return claimed


def _decode(log: bytes, at: int) -> Commit | None:
    if len(log) - at < _HEADER.size:
        return None
    magic, size, blocks, bin_bytes, docs_bytes, chain, source_offset, count, crc = _HEADER.unpack_from(log, at)
    if magic != MAGIC or size != _HEADER.size + count * BLOCK_ROW.itemsize or len(log) - at < size:
        return None
    body = memoryview(log)[at : at + size]
    if crc32(body[_HEADER.size :], crc32(bytes(_CRC.size), crc32(body[:_CRC_AT]))) != crc:
        return None
    rows = np.frombuffer(body, BLOCK_ROW, offset=_HEADER.size)
    return Commit(blocks, bin_bytes, docs_bytes, chain, source_offset, rows)


def _continues(commit: Commit, blocks: int, docs_bytes: int, block_bytes: int) -> bool:
    """Whether a whole record says what the writer would have written after ``blocks`` blocks."""
    if not len(commit.rows):
        return False
    ends = commit.rows["docs_end"]
    return bool(
        commit.blocks == blocks + len(commit.rows)
        and commit.bin_bytes == commit.blocks * block_bytes
        and commit.docs_bytes == ends[-1]
        and docs_bytes < ends[0]
        and (ends[:-1] < ends[1:]).all()
        and commit.chain == chain_after(commit.rows, -1)
    )


def _find_valid(log: bytes, start: int) -> int | None:
    at = log.find(MAGIC, start)
    while at >= 0:
        if at % ALIGNMENT == 0 and _decode(log, at) is not None:
            return at
        at = log.find(MAGIC, at + 1)
    return None


class DataCrcs(NamedTuple):
    """The CRC-32 of a segment's tokens, and that of its document table."""

    tokens: int
    documents: int


class OpenSegment:
    """Append-only; holds open file descriptors until `close`.

    ``rows`` are the committed blocks that recovery found, ``log_bytes`` the length of their commit log. Missing
    files are created durably before the first write to one of them: readers of ``*.bin`` need not handle an empty one.
    """

    def __init__(self, paths: layout.SegmentPaths, info: StreamInfo, rows: Rows, log_bytes: int) -> None:
        self.paths = paths
        self._info = info
        self._rows = np.zeros(info.segment_blocks, BLOCK_ROW)
        self._rows[: len(rows)] = rows
        self.blocks = self._committed = len(rows)
        self._docs_bytes = int(rows["docs_end"][-1]) if len(rows) else 0
        self._log_bytes = log_bytes
        self._source_offset = UNKNOWN
        self.written: DataCrcs | None = None if len(rows) else DataCrcs(0, 0)
        """CRCs of all that was appended; None where recovery found a part of it."""
        self._files: list[int] = []

    @property
    def rows(self) -> Rows:
        """The rows of all blocks so far, those not committed yet included."""
        return self._rows[: self.blocks]

    @property
    def room(self) -> int:
        """Blocks that still fit."""
        return self._info.segment_blocks - self.blocks

    def append(self, tokens: memoryview, entries: Sequence[bytes], chains: Sequence[bytes], source_offset: int) -> None:
        """Write blocks after the last; they count, and are durable, only after `commit`."""
        if not self._files:
            self._open()
        bins, docs, _ = self._files
        rows = make_rows(tokens, entries, chains, self._docs_bytes)
        layout.write_at(bins, tokens, self.blocks * self._info.block_bytes)
        documents = b"".join(entries)
        layout.write_at(docs, documents, self._docs_bytes)
        if self.written is not None:
            self.written = DataCrcs(crc32(tokens, self.written.tokens), crc32(documents, self.written.documents))
        self._rows[self.blocks : self.blocks + len(rows)] = rows
        self.blocks += len(rows)
        self._docs_bytes = int(rows["docs_end"][-1])
        self._source_offset = source_offset

    def _open(self) -> None:
        try:
            for path in (self.paths.tokens, self.paths.documents, self.paths.commits):
                self._files.append(open_regular(path, os.O_RDWR | os.O_CREAT))
            layout.sync_directory(self.paths.directory)
        except (OSError, DamagedError):
            self.close()
            raise

    def commit(self) -> None:
        """Make all that was appended durable and visible: data, sync, record, sync."""
        if self._committed == self.blocks:
            return
        bins, docs, log = self._files
        os.fdatasync(bins)
        os.fdatasync(docs)
        rows = self._rows[self._committed : self.blocks]
        record = Commit(
            blocks=self.blocks,
            bin_bytes=self.blocks * self._info.block_bytes,
            docs_bytes=self._docs_bytes,
            chain=rows["chain"][-1].tobytes(),
            source_offset=self._source_offset,
            rows=rows,
        ).encode()
        layout.write_at(log, record, self._log_bytes)
        os.fdatasync(log)
        self._log_bytes += len(record)
        self._committed = self.blocks

    def close(self) -> None:
        """Close the files; what was appended and not committed is discarded."""
        while self._files:
            os.close(self._files.pop())


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Describes a sealed segment (docs/format.md). Two stores of one stream hold equal manifests, byte for byte."""

    format: int = layout.FORMAT
    stream: str
    partition: int
    first: int
    blocks: int
    block_tokens: int
    dtype: str
    fingerprint: str
    """Of the stream, in hexadecimal; so are the chain hashes."""
    chain_before: str
    chain_after: str
    bin_bytes: int
    docs_bytes: int
    bin_crc32: int
    docs_crc32: int
    index_crc32: int

    @classmethod
    def of(cls, info: StreamInfo, partition: int, first: int, rows: Rows, *, before: bytes, data: DataCrcs) -> Self:
        """Return the manifest of a segment that has these rows; ``before``: the chain hash before its first block."""
        return cls(
            stream=info.name,
            partition=partition,
            first=first,
            blocks=len(rows),
            block_tokens=info.block_tokens,
            dtype=info.dtype.name,
            fingerprint=info.fingerprint.hex(),
            chain_before=before.hex(),
            chain_after=chain_after(rows, -1).hex(),
            bin_bytes=len(rows) * info.block_bytes,
            docs_bytes=int(rows["docs_end"][-1]),
            bin_crc32=data.tokens,
            docs_crc32=data.documents,
            index_crc32=crc32(rows.tobytes()),
        )

    def encode(self) -> bytes:
        """Return the manifest's bytes."""
        return canonical_json(asdict(self)) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the manifest of these bytes; raises ValueError where they are none, or spelled in another way."""
        values = parse_json(data)
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(cls)}:
            raise ValueError("it is no manifest")
        if values["format"] != layout.FORMAT:
            raise ValueError(f"it has format {values['format']}, this version knows format {layout.FORMAT}")
        for name in ("fingerprint", "chain_before", "chain_after"):
            if values[name] != bytes.fromhex(str(values[name])).hex():
                raise ValueError(f"its {name} is no hexadecimal number")
        if canonical_json(values) + b"\n" != data:
            raise ValueError("it is not spelled as it was written")
        return cls(**values)


def megatron_index(blocks: int, block_tokens: int, dtype: "np.dtype[np.unsignedinteger]") -> bytes:
    """Return the ``.idx`` of a ``.bin`` of ``blocks`` blocks."""
    return index_of_lengths(np.full(blocks, block_tokens), dtype)


def index_of_lengths(lengths: npt.NDArray[np.int64], dtype: "np.dtype[np.unsignedinteger]") -> bytes:
    """Return the ``.idx`` of a ``.bin`` of sequences of so many tokens, back to back, each a document of its own."""
    count = len(lengths)
    # Megatron has no code for uint32; its int32 (4) reads the same ids, as every id is below 2**31.
    code = {"uint8": 1, "uint16": 8, "uint32": 4}[dtype.name]
    header = Struct("<9sQBQQ").pack(b"MMIDIDX\x00\x00", 1, code, count, count + 1)
    pointers, ends = (np.cumsum(lengths) - lengths).astype("<i8") * dtype.itemsize, np.arange(count + 1, dtype="<i8")
    return header + lengths.astype("<i4").tobytes() + pointers.tobytes() + ends.tobytes()


_CHUNK: Final = 1 << 18
"""Bytes read at a time, about: enough that system calls cost little, few enough to stay in the cache."""


def seal(
    paths: layout.SegmentPaths,
    info: StreamInfo,
    partition: int,
    rows: Rows,
    chain_before: bytes,
    *,
    written: DataCrcs | None = None,
) -> Manifest:
    """Seal a segment whose blocks are all committed; after the return it is sealed durably.

    A crash at any moment leaves it as it was, or sealed: the same bytes of the indexes are written again. The data is
    read back, so that a manifest never describes bytes that changed after their commit. ``written``: the CRCs that the
    writer of the whole segment computed; then only a file that differs is read block by block.

    Raises:
        DamagedError: tokens or document table are missing, or not what was committed.
    """
    try:
        if written is None or written != DataCrcs(_crc_of(paths.tokens), _crc_of(paths.documents)):
            written = check_data(paths, info, rows)
    except FileNotFoundError as error:
        if not paths.directory.is_dir():
            raise  # the disk is gone, not the file
        raise layout.damaged(Path(error.filename), layout.MISSING) from None
    layout.put_file(paths.index, rows.tobytes())
    layout.put_file(paths.megatron, megatron_index(len(rows), info.block_tokens, info.dtype))
    manifest = Manifest.of(info, partition, paths.first, rows, before=chain_before, data=written)
    layout.put_file(paths.manifest, manifest.encode())
    return manifest


def check_data(paths: layout.SegmentPaths, info: StreamInfo, rows: Rows) -> DataCrcs:
    """Return the CRCs of a full segment's files; raises DamagedError at a block that is not what was committed."""
    tokens_ends = list(range(info.block_bytes, len(rows) * info.block_bytes + 1, info.block_bytes))
    return DataCrcs(
        _check_file(paths.tokens, tokens_ends, rows["tokens_crc"].tolist(), paths.first),
        _check_file(paths.documents, rows["docs_end"].tolist(), rows["entry_crc"].tolist(), paths.first),
    )


def _crc_of(path: Path) -> int:
    crc, buffer = 0, memoryview(bytearray(_CHUNK))
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            crc = crc32(buffer[:size], crc)
    return crc


def _check_file(path: Path, ends: list[int], crcs: list[int], first: int) -> int:
    whole, starts, together = 0, [0, *ends[:-1]], max(1, len(ends) * _CHUNK // ends[-1])
    with regular_file(path) as file:
        if os.fstat(file.fileno()).st_size != ends[-1]:
            raise layout.damaged(path, f"it is not {ends[-1]} bytes long, as its commit log says")
        for low in range(0, len(ends), together):
            some, at = slice(low, low + together), starts[low]
            data = memoryview(file.read(ends[some][-1] - at))
            whole = crc32(data, whole)
            for number, (start, end, crc) in enumerate(zip(starts[some], ends[some], crcs[some], strict=True), low):
                if crc32(data[start - at : end - at]) != crc:
                    raise layout.damaged(path, f"block {first + number}, at byte {start}, is not what was committed")
    return whole


def sealed_segments(directory: Path, info: StreamInfo, partition: int) -> Iterator[Manifest]:
    """Yield a partition's manifests in order, without those being retired; raises DamagedError where one is wrong."""
    try:
        firsts = layout.segment_firsts(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
    except FileNotFoundError:
        return
    start = read_start(directory, info, partition).block
    for first in (first for first in firsts if first >= start):
        paths = layout.SegmentPaths(directory, first)
        manifest = load_manifest(paths, info, partition)
        if manifest is not None:
            yield manifest
        elif first < firsts[-1] - info.segment_blocks:  # the last but one may be about to be sealed
            raise layout.damaged(paths.manifest, layout.MISSING)


def load_manifest(paths: layout.SegmentPaths, info: StreamInfo, partition: int) -> Manifest | None:
    """Return the manifest of a segment, None of an unsealed one; raises DamagedError where it is not this one's."""
    try:
        manifest = Manifest.decode(read_regular(paths.manifest, most=MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise layout.damaged(paths.manifest, str(error)) from error
    found = (manifest.stream, manifest.partition, manifest.first, manifest.blocks, manifest.fingerprint)
    wanted = (info.name, partition, paths.first, info.segment_blocks, info.fingerprint.hex())
    if found != wanted or (manifest.block_tokens, manifest.dtype) != (info.block_tokens, info.dtype.name):
        raise layout.damaged(
            paths.manifest,
            f"it belongs elsewhere: its stream, partition, first block, blocks and fingerprint are {found}, here "
            f"belongs {wanted}",
        )
    return manifest


def load_index(paths: layout.SegmentPaths, manifest: Manifest) -> Rows:
    """Return the rows of a sealed segment; raises DamagedError where the index is not what the manifest says."""
    try:
        data = read_regular(paths.index)
    except FileNotFoundError:
        raise layout.damaged(paths.index, layout.MISSING) from None
    rows = np.frombuffer(data, BLOCK_ROW) if len(data) == manifest.blocks * BLOCK_ROW.itemsize else None
    if rows is None or crc32(data) != manifest.index_crc32 or chain_after(rows, -1).hex() != manifest.chain_after:
        raise layout.damaged(paths.index, "it is not what the manifest says")
    return rows


def check_sealed(paths: layout.SegmentPaths, info: StreamInfo, manifest: Manifest, crcs: DataCrcs) -> None:
    """Check a sealed segment, whose data has these CRCs; raises DamagedError for its manifest or Megatron index."""
    if crcs != (manifest.bin_crc32, manifest.docs_crc32):
        raise layout.damaged(paths.manifest, "its checksums are not those of the files")
    index = megatron_index(manifest.blocks, info.block_tokens, info.dtype)
    with suppress(FileNotFoundError):
        if read_regular(paths.megatron) == index:
            return
    raise layout.damaged(paths.megatron, "it is missing, or not the index of its tokens")


def check_sizes(paths: layout.SegmentPaths, manifest: Manifest) -> None:
    """Raise DamagedError where a sealed segment's data is missing, or has another length."""
    for path, wanted in ((paths.tokens, manifest.bin_bytes), (paths.documents, manifest.docs_bytes)):
        if not path.exists():
            raise layout.damaged(path, layout.MISSING)
        if path.stat().st_size != wanted:
            raise layout.damaged(path, f"it has {path.stat().st_size} bytes, the manifest says {wanted}")
