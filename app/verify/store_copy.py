"""The store's side of a chain: its blocks in order, straight from the files, with every checksum."""

from pathlib import Path
from zlib import crc32

from tokenmill.segments import StreamInfo
from tokenmill.segments.damage import damaged
from tokenmill.segments.layout import SegmentPaths, partition_directory
from tokenmill.segments.megatron import megatron_index
from tokenmill.segments.rows import chain_after
from tokenmill.segments.sealed import check_sizes
from tokenmill.segments.segment import Segment

from .compare import BlockBytes
from .marks import StoreMark


class StoreCopy:
    """The blocks ``[first, end)`` of one partition in a store; one segment mapped at a time."""

    def __init__(self, store: Path, info: StreamInfo, partition: int, mark: StoreMark) -> None:
        """Read nothing yet."""
        self.next_block = mark.first
        """Number of the block after the last one taken."""
        self._mark = mark
        self._directory = partition_directory(store, info.name, partition)
        self._info = info
        self._partition = partition
        self._segment: Segment | None = None
        self._from = 0
        """Number of the first block taken of the segment; the checksums below are from there on."""
        self._tokens_crc = 0
        self._documents_crc = 0

    def take(self, number: int) -> BlockBytes | None:
        """Return a block, the numbers asked for in order; None where the store did not hold it at the mark.

        Raises:
            DamagedError: a file is missing or too short, or the commit log or index is not what was written.
            StoreError: a segment belongs to another stream.

        """
        if not self._mark.first <= number < self._mark.end:
            return None
        segment = self._locate(number)
        local = number - segment.paths.first
        tokens, entry = memoryview(segment.tokens[local]).cast("B"), segment.entry(local)
        self._tokens_crc = crc32(tokens, self._tokens_crc)
        self._documents_crc = crc32(entry, self._documents_crc)
        self.next_block = number + 1
        return BlockBytes(tokens, entry, chain_after(segment.rows, local))

    def check(self, number: int) -> None:
        """Check the checksums of the block taken last, and of its segment where it is the segment's last.

        Raises:
            DamagedError: they do not fit.

        """
        segment = self._locate(number)
        local = number - segment.paths.first
        segment.check_tokens(local)
        segment.check_entry(local)
        if local + 1 == self._info.segment_blocks:
            self._check_sealed(segment)

    def _locate(self, number: int) -> Segment:
        first = number - number % self._info.segment_blocks
        if self._segment is None or self._segment.paths.first != first:
            segment = Segment(SegmentPaths(self._directory, first), self._info, self._partition)
            wanted = min(self._mark.end - first, self._info.segment_blocks)
            if segment.blocks < wanted:
                raise damaged(segment.paths.commits, f"{segment.blocks} blocks are committed, {wanted} were before")
            self._segment, self._from = segment, number
            self._tokens_crc = self._documents_crc = 0
        return self._segment

    def _check_sealed(self, segment: Segment) -> None:
        """Hold a full segment against its manifest and Megatron index; nothing where it is not sealed yet.

        The checksums of whole files only where all blocks were taken; those of the blocks are checked in any case.
        """
        manifest, paths, info = segment.manifest, segment.paths, self._info
        if manifest is None:
            return
        check_sizes(paths, manifest)
        whole = self._from == paths.first
        if whole and (self._tokens_crc, self._documents_crc) != (manifest.bin_crc32, manifest.docs_crc32):
            raise damaged(paths.manifest, "its checksums are not those of the files")
        megatron = megatron_index(info.segment_blocks, info.block_tokens, info.dtype)
        if not paths.megatron.exists() or paths.megatron.read_bytes() != megatron:
            raise damaged(paths.megatron, "it is missing, or not the index of its tokens")
