"""The store's side of a chain: blocks straight from the files, with every checksum, up to the first difference."""

from pathlib import Path

from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import StreamInfo
from tokenmill.store.layout import SegmentPaths, damaged, partition_directory
from tokenmill.store.maps import read_part
from tokenmill.store.sealing import DataCrcs, chain_after, check_sealed, check_sizes, entry_span, make_rows
from tokenmill.store.segment import Segment

from .comparison import BlockRun, compare_blocks, difference, found_difference
from .verify_marks import StoreMark
from .verify_result import ChainResult, VerifyDifference


class StoreSide:
    """The blocks of one partition in a store, followed up to the first difference, which goes into the result.

    One segment is mapped at a time.
    """

    def __init__(self, store: Path, info: StreamInfo, result: ChainResult, mark: StoreMark, *, since: int = 0) -> None:
        """Compare the blocks of ``mark``; those below ``since`` were verified before, and are not asked for."""
        self.next_block = max(mark.first, min(since, mark.end))
        """Number of the block after the last one that was compared."""
        self.broken = False
        self._mark = mark
        self._directory = partition_directory(store, info.name, result.partition)
        self._info = info
        self._result = result
        self._segment: Segment | None = None
        self._crcs = DataCrcs(0, 0)
        """Of all tokens of the segment below `next_block`, and of its document table."""
        if mark.damage:
            self._stop(difference(result, "store", "damaged", mark.damage))

    def compare(self, blocks: BlockRun) -> None:
        """Compare the store's blocks of these numbers, as far as it has any, and their checksums."""
        number, end = max(blocks.first, self._mark.first), min(blocks.end, self._mark.end)
        while not self.broken and number < end:
            border = number - number % self._info.segment_blocks + self._info.segment_blocks
            run = blocks.part(number, min(end, border))
            try:
                equal = self._takes(run)
            except (DamagedError, StoreError):
                equal = False  # the block that says it is named below
            if not equal:
                self._find(run)
            number = run.end

    def _takes(self, run: BlockRun) -> bool:
        """Return whether the store has these blocks of one segment, all of them right, and go on behind them if so.

        Raises:
            DamagedError: a file is missing or too short, the commit log or index is not what was written, or what is
                beside the blocks of a full segment does not fit them.
            StoreError: the segment belongs to another stream.

        """
        segment = self._locate(run.first)
        low, high = run.first - segment.paths.first, run.end - segment.paths.first
        rows, size, paths = segment.rows[low:high], self._info.block_bytes, segment.paths
        start, stop = entry_span(segment.rows, low)[0], int(rows["docs_end"][-1])
        tokens, documents = bytes(run.tokens), b"".join(run.entries)
        if make_rows(memoryview(tokens), run.entries, run.chains, start).tobytes() != rows.tobytes():
            return False
        if read_part(paths.tokens, low * size, high * size) != tokens:
            return False
        if read_part(paths.documents, start, stop) != documents:
            return False
        crcs = DataCrcs(crc32(tokens, self._crcs.tokens), crc32(documents, self._crcs.documents))
        if high == self._info.segment_blocks and segment.manifest is not None:
            check_sizes(paths, segment.manifest)
            check_sealed(paths, self._info, segment.manifest, crcs)
        self._crcs = crcs
        self.next_block = run.end
        self._result.store_equal += len(run.entries)
        return True

    def _find(self, run: BlockRun) -> None:
        """Find the first of these blocks that is not as it must be, and what is wrong with it."""
        for number in range(run.first, run.end):
            one = run.part(number, number + 1)
            try:
                if not self._takes(one):
                    self._stop(self._difference(one))
            except (DamagedError, StoreError) as error:
                text, entry = str(error), one.entries[0]
                self._stop(difference(self._result, "store", "damaged", text, block=number, entry=entry))
            if self.broken:
                return

    def _difference(self, one: BlockRun) -> VerifyDifference:
        """Return how a block differs; damage where its bytes are not those that were committed."""
        segment = self._locate(one.first)
        local = one.first - segment.paths.first
        tokens, entry = memoryview(segment.tokens[local]).cast("B"), bytes(segment.entry(local))
        found = BlockRun(one.first, tokens, [entry], [chain_after(segment.rows, local)])
        finding = compare_blocks(one.block(one.first), found.block(one.first), self._info.dtype)
        if finding is None:
            segment.check_tokens(local)
            segment.check_entry(local)
            raise damaged(segment.paths.commits, f"the row of block {one.first} is not what was committed")
        try:
            segment.check_tokens(local)
            segment.check_entry(local)
        except DamagedError as error:
            finding = finding._replace(kind="damaged", text=f"{finding.text}; {error}")
        return found_difference(self._result, "store", one.first, finding)

    def _locate(self, number: int) -> Segment:
        first = number - number % self._info.segment_blocks
        if self._segment is None or self._segment.paths.first != first:
            segment = Segment(SegmentPaths(self._directory, first), self._info, self._result.partition)
            wanted = min(self._mark.end - first, self._info.segment_blocks)
            if segment.blocks < wanted:
                raise damaged(segment.paths.commits, f"{segment.blocks} blocks are committed, {wanted} were before")
            self._segment, self._crcs = segment, DataCrcs(0, 0)
            if number > first:  # what was verified before belongs to the checksums of the whole files as well
                documents = segment.documents(0, entry_span(segment.rows, number - first - 1)[1])
                self._crcs = DataCrcs(crc32(segment.tokens[: number - first].tobytes()), crc32(documents))
        return self._segment

    def finish(self, blocks: int, source: str) -> None:
        """After the last of ``blocks`` blocks of the ``source``: the store must not hold another."""
        held = self._result.store_blocks
        if not self.broken and held is not None and held[1] > max(blocks, held[0]):
            text = f"{source} makes {blocks} blocks, the store holds {held[1]}"
            self._stop(difference(self._result, "store", "extra", text, block=blocks))

    def _stop(self, found: VerifyDifference) -> None:
        self.broken = True
        self._result.differences.append(found)
