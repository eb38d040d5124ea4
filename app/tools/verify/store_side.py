"""The store's side of a chain: blocks straight from the files, with every checksum, up to the first difference."""

from dataclasses import replace
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, StoreError
from tokenmill.recipe import Recipe
from tokenmill.store import StreamInfo
from tokenmill.store.commit_log import chain_after, entry_span, make_rows
from tokenmill.store.layout import SegmentPaths, damaged, partition_directory
from tokenmill.store.maps import read_part
from tokenmill.store.sealing import check_sizes, megatron_index
from tokenmill.store.segment import Segment

from .comparison import BlockBytes, ExpectedBlocks, compare_blocks, difference
from .verify_marks import StoreMark
from .verify_result import ChainResult, VerifyDifference


class StoreCopy:
    """The blocks ``[first, end)`` of one partition in a store; one segment mapped at a time."""

    def __init__(self, store: Path, info: StreamInfo, partition: int, mark: StoreMark, *, since: int = 0) -> None:
        """Take the blocks of ``mark``; those below ``since`` were verified before, and are not asked for."""
        self.next_block = max(mark.first, min(since, mark.end))
        """Number of the block after the last one taken."""
        self.first = mark.first
        """Number of the first block that it held at the mark."""
        self.end = mark.end
        """Number of the block after the last one that it held then."""
        self._directory = partition_directory(store, info.name, partition)
        self._info = info
        self._partition = partition
        self._segment: Segment | None = None
        self._tokens_crc = 0
        """Of all tokens of the segment below `next_block`; so is the next one, of its document table."""
        self._documents_crc = 0

    def take(self, number: int) -> BlockBytes:
        """Return a block that the store held at the mark, the numbers asked for in order.

        Raises:
            DamagedError: a file is missing or too short, or the commit log or index is not what was written.
            StoreError: a segment belongs to another stream.

        """
        segment = self._locate(number)
        local = number - segment.paths.first
        tokens, entry = memoryview(segment.tokens[local]).cast("B"), segment.entry(local)
        self._tokens_crc = crc32(tokens, self._tokens_crc)
        self._documents_crc = crc32(entry, self._documents_crc)
        self.next_block = number + 1
        return BlockBytes(tokens, entry, chain_after(segment.rows, local))

    def equal_run(self, number: int, blocks: ExpectedBlocks) -> int:
        """Return how many of ``blocks``, from ``number`` on and within one segment, are there, all of them right.

        Their tokens, entries and hashes are equal, and their checksums fit. 0 where that is not so of all of them:
        each must be looked at then. The store held block ``number`` at the mark.

        Raises:
            DamagedError, StoreError: as `take` and `check`.

        """
        segment = self._locate(number)
        first = segment.paths.first
        end = min(blocks.end, self.end, first + self._info.segment_blocks)
        low, high, count = number - first, end - first, end - number
        rows = segment.rows[low:high]
        entries = blocks.entries_from(number, count)
        start, stop = entry_span(segment.rows, low)[0], int(rows["docs_end"][-1])
        tokens, documents = blocks.tokens_from(number, count), b"".join(entries)
        made = make_rows(memoryview(tokens), entries, blocks.chains[number - blocks.first : end - blocks.first], start)
        if made.tobytes() != rows.tobytes():
            return 0
        size, paths = self._info.block_bytes, segment.paths
        if read_part(paths.tokens, low * size, high * size) != tokens:
            return 0
        if read_part(paths.documents, start, stop) != documents:
            return 0
        crcs = crc32(tokens, self._tokens_crc), crc32(documents, self._documents_crc)
        if high == self._info.segment_blocks:
            self._check_sealed(segment, crcs)
        self._tokens_crc, self._documents_crc = crcs
        self.next_block = end
        return count

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
            self._check_sealed(segment, (self._tokens_crc, self._documents_crc))

    def _locate(self, number: int) -> Segment:
        first = number - number % self._info.segment_blocks
        if self._segment is None or self._segment.paths.first != first:
            segment = Segment(SegmentPaths(self._directory, first), self._info, self._partition)
            wanted = min(self.end - first, self._info.segment_blocks)
            if segment.blocks < wanted:
                raise damaged(segment.paths.commits, f"{segment.blocks} blocks are committed, {wanted} were before")
            self._segment = segment
            self._tokens_crc = self._documents_crc = 0
            if number > first:  # what was verified before belongs to the checksums of the whole files as well
                local = number - first
                self._tokens_crc = crc32(segment.tokens[:local].tobytes())
                self._documents_crc = crc32(segment.documents(0, entry_span(segment.rows, local - 1)[1]))
        return self._segment

    def _check_sealed(self, segment: Segment, crcs: tuple[int, int]) -> None:
        """Compare a full segment with its manifest and Megatron index; do nothing where it is not sealed yet.

        ``crcs``: of all its tokens and of its whole document table.
        """
        manifest, paths, info = segment.manifest, segment.paths, self._info
        if manifest is None:
            return
        check_sizes(paths, manifest)
        if crcs != (manifest.bin_crc32, manifest.docs_crc32):
            raise damaged(paths.manifest, "its checksums are not those of the files")
        megatron = megatron_index(info.segment_blocks, info.block_tokens, info.dtype)
        if not paths.megatron.exists() or paths.megatron.read_bytes() != megatron:
            raise damaged(paths.megatron, "it is missing, or not the index of its tokens")


class StoreSide:
    """The store, followed up to its first difference, which goes into the result."""

    def __init__(self, copy: StoreCopy, recipe: Recipe, result: ChainResult) -> None:
        """Follow ``copy``."""
        self.broken = False
        self._copy = copy
        self._recipe = recipe
        self._result = result

    @property
    def next_block(self) -> int:
        """Number of the block after the last one that was compared."""
        return self._copy.next_block

    def compare(self, blocks: ExpectedBlocks) -> None:
        """Compare the store's blocks of these numbers, as far as it has any, and their checksums."""
        number, end = max(blocks.first, self._copy.first), min(blocks.end, self._copy.end)
        while not self.broken and number < end:
            try:
                equal = self._copy.equal_run(number, blocks)
            except (DamagedError, StoreError):
                equal = 0  # the block that says it is named below
            self._result.store_equal += equal
            number += equal
            if not equal:
                self._compare_one(number, blocks.block(number))
                number += 1

    def _compare_one(self, number: int, expected: BlockBytes) -> None:
        """Find out what is wrong with a block, if anything is."""
        try:
            found = self._copy.take(number)
            finding = compare_blocks(expected, found, self._recipe.token_dtype)
            if finding is None:
                self._copy.check(number)
                self._result.store_equal += 1
                return
        except (DamagedError, StoreError) as error:
            self._stop(difference(self._result, "store", "damaged", str(error), block=number, entry=expected.entry))
            return
        kind, text = finding.kind, finding.text
        try:
            self._copy.check(number)
        except DamagedError as error:
            kind, text = "damaged", f"{text}; {error}"
        known = difference(self._result, "store", kind, text, block=number)
        self._stop(replace(known, offset=finding.offset, document=finding.document))

    def finish(self, blocks: int, source: str) -> None:
        """After the last of ``blocks`` blocks of the ``source``: the store must not hold another."""
        held = self._result.store_blocks
        if not self.broken and held is not None and held[1] > max(blocks, held[0]):
            text = f"{source} makes {blocks} blocks, the store holds {held[1]}"
            self._stop(difference(self._result, "store", "extra", text, block=blocks))

    def _stop(self, found: VerifyDifference) -> None:
        self.broken = True
        self._result.differences.append(found)
