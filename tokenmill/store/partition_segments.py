"""The segments of a partition as a reader has them: which there are, and the few that are kept mapped."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tokenmill.errors import DamagedError, InputError
from tokenmill.store.damage import damaged
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.segment import Segment
from tokenmill.store.start import read_start
from tokenmill.store.stream import StreamInfo

_KNOWN_SEGMENTS: Final = 16_384
"""Sealed segments whose manifest is remembered, at a kilobyte each: to map one again then reads no other file."""


class PartitionSegments:
    """Follows a partition while it grows, and opens its segments when they are asked for."""

    def __init__(
        self, directory: Path, info: StreamInfo, partition: int, *, refuse: bool, whole: bool, mapped: int
    ) -> None:
        """Prepare; `follow` reads the first files.

        Args:
            directory: of the partition, which need not be there.
            info: of the stream.
            partition: its number.
            refuse: whether damage to a commit log is an error; else the blocks before it can be read.
            whole: whether segments will be read as a whole.
            mapped: how many are kept mapped beside the growing one.

        """
        self.first_block = 0
        """Number of the oldest block; those before were retired, or never here."""
        self.blocks = 0
        """Number of the block after the last committed one."""
        self._directory = directory
        self._info = info
        self._partition = partition
        self._refuse = refuse
        self._whole = whole
        self._mapped = mapped
        self._tail: Segment | None = None
        self._cache: OrderedDict[int, Segment] = OrderedDict()
        self._known: OrderedDict[int, Segment] = OrderedDict()

    @property
    def damage(self) -> str | None:
        """Damage to the commit log of the growing segment that was not refused."""
        return self._tail.damage if self._tail is not None else None

    def torn(self) -> DamagedError | None:
        """Return the error for what stands behind the last commit, once no writer is at it; None: nothing does."""
        return self._tail.torn() if self._tail is not None else None

    def follow(self) -> None:
        """Go on to the last block that is committed now.

        Raises:
            DamagedError: a commit log or manifest was changed after it was written, or belongs to another stream.

        """
        if self._tail is None or self._raise_first() > self._tail.paths.first:
            self._tail = self._find_tail()
        if self._tail is None:
            return
        while self._tail.refresh() == self._info.segment_blocks:
            following = self._open(self._tail.paths.first + self._info.segment_blocks)
            if not following.blocks:
                break
            self._remember(self._tail)
            self._tail = following
        self.blocks = self._tail.paths.first + self._tail.blocks

    def locate(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a block, and the block's number in it.

        Raises:
            DamagedError: its manifest or commit log is damaged or missing.

        """
        first = number - number % self._info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            return self._tail, number - first
        segment = self._cache.get(first) or self._known.get(first)
        if segment is None:
            segment = self._open(first)
            if segment.blocks < self._info.segment_blocks:
                raise damaged(
                    segment.paths.tokens, f"{segment.blocks} blocks of it are committed, but later segments exist"
                )
        self._remember(segment)
        return segment, number - first

    @contextmanager
    def forgetting(self, number: int) -> Iterator[None]:
        """Do with a block's segment what may find damage; `forget` it then."""
        try:
            yield
        except DamagedError:
            self.forget(number)
            raise

    def forget(self, number: int) -> None:
        """Map the segment of a damaged block again when it is read again, for it may have been repaired by then.

        Raises:
            InputError: it is not damaged, but was retired.

        """
        self._raise_first()
        self.require(number, number)
        first = number - number % self._info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            self._tail = self._open(first)
        for segments in (self._cache, self._known):
            segments.pop(first, None)

    def require(self, lowest: int, highest: int) -> None:
        """Raise InputError where not all blocks of ``[lowest, highest]`` are there as of the last `follow`."""
        if 0 <= lowest < self.first_block:
            raise InputError(
                f"block {lowest} of {self._directory} is not there any more: it begins at block {self.first_block}, "
                "for its older segments were retired; ask for later blocks, or read a store that still holds this one"
            )
        if lowest < 0 or highest >= self.blocks:
            number = lowest if lowest < 0 else highest
            raise InputError(
                f"block {number} of {self._directory} is not there: blocks {self.first_block} to {self.blocks - 1} are "
                "(as of the last refresh); ask for one of these, or refresh and wait"
            )

    def _raise_first(self) -> int:
        """See whether segments were retired; return the number of the first block."""
        self.first_block = read_start(self._directory, self._info, self._partition).block
        return self.first_block

    def _remember(self, segment: Segment) -> None:
        """Keep the segment mapped, and unmap the one that was not used for the longest time."""
        first = segment.paths.first
        if segment.manifest is not None:  # one that was seen growing holds all its rows
            self._known[first] = segment
        while len(self._known) > _KNOWN_SEGMENTS:
            self._known.popitem(last=False)
        self._cache[first] = segment
        self._cache.move_to_end(first)
        while len(self._cache) > self._mapped:
            _, unused = self._cache.popitem(last=False)
            unused.unmap()

    def _open(self, first: int) -> Segment:
        paths = SegmentPaths(self._directory, first)
        return Segment(paths, self._info, self._partition, refuse=self._refuse, whole=self._whole)

    def _find_tail(self) -> Segment | None:
        """Return the last segment that there is, or None if there is none yet."""
        try:
            firsts = segment_firsts(os.listdir(self._directory))  # noqa: PTH208 - names alone, of many files
        except FileNotFoundError:
            return None
        start = self._raise_first()
        if not firsts or firsts[-1] < start:
            self.blocks = start
            return None
        self.blocks = max(self.blocks, firsts[-1])  # all before the last segment are there, whatever becomes of that
        return self._open(firsts[-1])
