"""Where the tokens of eras and samples are in a stream's files: what reading ahead brings into memory."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tokenmill.samples import Samples, SequenceId
from tokenmill.samples.places import EraPlaces
from tokenmill.store import StreamInfo, open_eras
from tokenmill.store.layout import SegmentPaths, partition_directory
from tokenmill.store.maps import FileRange

_RUN_BYTES: Final = 8 << 20
"""Consecutive small eras that are read as one: their blocks follow each other in each partition."""
_GAP_BYTES: Final = 32 << 10
"""Between two samples in a file: to read them is cheaper than another request."""
_AWAITED_SEGMENTS: Final = 256
"""Of an era: opening the files of so many takes 10 ms. The loop does not wait for more, for it may need few of them."""
_WHOLE: Final = 1 << 62
"""Behind the end of any file."""


class Turn(NamedTuple):
    """An era in a pass; those of a sequence ascend."""

    passed: int
    era: int


@dataclass(slots=True, eq=False)
class EraRun:
    """Consecutive eras of one pass that are read together."""

    first: Turn
    last: Turn
    blocks: list[range]
    """Their blocks, of each partition."""
    bytes: int
    """Of their tokens."""
    left: int
    """Of these, how many are not read yet."""
    is_whole: bool
    """Whether all of them are read; else their samples are, one by one."""
    is_awaited: bool = True
    """Whether the loop waits for it."""
    is_planned: bool = False
    """Whether it is known what is to be read of it; of one that is awaited, what says where the blocks are was read."""
    parts: deque[FileRange] = field(default_factory=deque)
    """Of a run that is read whole, what nobody has begun to read, once it is planned."""
    begun: int = 0
    """How many parts are being read."""


class StreamFiles:
    """Where the tokens of a stream's eras and samples are in its files; for one thread."""

    def __init__(self, store: Path, info: StreamInfo, sequence: SequenceId, views: int, *, documents: bool) -> None:
        """Open the eras once more; with ``documents``, the document tables of the eras are read, too."""
        self.eras = open_eras(store, info.name)
        self._places = EraPlaces(self.eras, sequence, views)
        self._store = store
        self._info = info
        self._sequence = sequence
        self._views = views
        self._documents = documents
        self._described: set[Path] = set()
        """Manifests of the sealed segments of the last run."""

    def run(self, turn: Turn, most_bytes: int) -> EraRun:
        """Return the eras to be read together from a known one on: one, or several small ones."""
        before, size = self.eras.blocks_before(turn.era), self._info.block_bytes
        stop, known = turn.era + 1, self._places.last_era() + 1
        while stop < known and (self.eras.blocks_before(stop + 1) - before) * size <= _RUN_BYTES:
            stop += 1
        count = (self.eras.blocks_before(stop) - before) * size
        first = self.eras.era(turn.era).ranges
        last = first if stop == turn.era + 1 else self.eras.era(stop - 1).ranges
        begins = [part.first for part in first] + [0] * (len(last) - len(first))
        blocks = [range(begin, part.stop) for begin, part in zip(begins, last, strict=True)]
        run = EraRun(turn, Turn(turn.passed, stop - 1), blocks, count, count, is_whole=count <= most_bytes)
        run.is_awaited = sum(map(len, map(self._segments_of, blocks))) <= _AWAITED_SEGMENTS
        return run

    def following(self, turn: Turn) -> Turn | None:
        """Return the era after one, perhaps in the next pass; None where it is not known."""
        if turn.era < self._places.last_era():
            return Turn(turn.passed, turn.era + 1)
        if self._places.in_pass() and turn.passed + 1 < self._sequence.passes:
            return Turn(turn.passed + 1, self._sequence.eras[0])
        return None

    def descriptions(self, run: EraRun) -> Iterator[FileRange]:
        """Yield the files that say which blocks of a run count, and where they are.

        Those of sealed segments that the last run was from, too, are not yielded again.
        """
        before = self._described
        segments = [paths for paths, _, _ in self._segments(run)]
        self._described = {paths.manifest for paths in segments if paths.manifest.exists()}
        for paths in segments:
            if paths.manifest in before:
                continue
            whole = [paths.manifest, paths.index, paths.commits, *([paths.documents] if self._documents else [])]
            yield from (FileRange(path, 0, _WHOLE) for path in whole)

    def tokens(self, run: EraRun) -> Iterator[FileRange]:
        """Yield the parts of files that hold the blocks of a run, in the order of the files."""
        size = self._info.block_bytes
        for paths, low, high in self._segments(run):
            yield FileRange(paths.tokens, low * size, high * size)

    def _segments(self, run: EraRun) -> Iterator[tuple[SegmentPaths, int, int]]:
        """Yield the segments that have blocks of a run, and which of theirs these are: ``[low, high)``."""
        size = self._info.segment_blocks
        for partition, blocks in enumerate(run.blocks):
            for segment in self._segments_of(blocks):
                yield self._paths(partition, segment), max(blocks.start - segment, 0), min(blocks.stop - segment, size)

    def _segments_of(self, blocks: range) -> range:
        size = self._info.segment_blocks
        return range(blocks.start - blocks.start % size, blocks.stop, size) if blocks else range(0)

    def rows(self, samples: Samples) -> Iterator[FileRange]:
        """Yield the parts of files that hold samples, each once, in the order of the files."""
        order = np.lexsort((samples.views, samples.blocks, samples.partitions))
        partitions = samples.partitions[order]
        segments, inside = np.divmod(samples.blocks[order], self._info.segment_blocks)
        item = self._info.dtype.itemsize
        step = (self._info.block_tokens - 1) // self._views * item
        starts = inside * self._info.block_bytes + samples.views[order] * step
        apart = (np.diff(partitions) != 0) | (np.diff(segments) != 0) | (np.diff(starts) > step + _GAP_BYTES)
        firsts = np.append(0, np.flatnonzero(apart) + 1)
        lasts = np.append(firsts[1:], len(starts)) - 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            paths = self._paths(int(partitions[first]), int(segments[first]) * self._info.segment_blocks)
            yield FileRange(paths.tokens, int(starts[first]), int(starts[last]) + step + item)

    def _paths(self, partition: int, segment: int) -> SegmentPaths:
        return SegmentPaths(partition_directory(self._store, self._info.name, partition), segment)
