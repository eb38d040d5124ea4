"""Reading the files of the eras that come next, in threads of their own, so that the training loop waits for no disk.

A shuffled era is read in no order of its file, so its first batch may need the last page. Two threads therefore read
whole eras in the order of their files: the one that the loop is in, which it waits for, and the one after it. Both read
the same era: while one waits for its turn in this process, the disk works for the other. Eras that are larger than what
may be kept ahead, and the beginning of a large one, are read by sample: those of the next batches, and those after
them.

What is read goes to the system's page cache (`tokenmill.store.maps`), where it counts as no process's memory, and where
the other ranks of the host find it. Nothing depends on it: what is not there is read when it is touched.
"""

import logging
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Final, NamedTuple

import numpy as np

from tokenmill.errors import TokenMillError
from tokenmill.samples.sequence import Samples
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store.layout import SegmentPaths, partition_directory
from tokenmill.store.maps import FileRange, is_in_memory, read_pieces, read_small

log = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 1 << 30
"""Of tokens kept ahead: two eras of 512 MiB, thirty times the default."""
_WORTH_WAITING: Final = 64 << 20
"""Of an era for which the loop waits: 50 ms on a disk of 1.3 GB/s. Of a larger one, the next samples come first."""
_GAP_BYTES: Final = 32 << 10
"""Between two samples in a file: to read them is cheaper than another request."""
_WHOLE: Final = 1 << 62
_THREADS: Final = 2


class Turn(NamedTuple):
    """An era in a pass; those of a sequence ascend."""

    passed: int
    era: int


class PartsAhead:
    """Parts of files that are read in order, by any number of threads."""

    def __init__(self, parts: Iterable[FileRange]) -> None:
        self.done = Event()
        """Set once all are in memory, but for what cannot be read: the loop meets that fault, and reports it."""
        self.is_left = False
        """Whether the loop has gone where they are of no use."""
        self._parts = deque(parts)
        self._left = len(self._parts)
        self._lock = Lock()

    def work(self) -> None:
        """Read the parts that no thread has started."""
        while not self.is_left:
            try:
                part = self._parts.popleft()
            except IndexError:
                break
            with _reporting(part.path):
                if part.stop == _WHOLE or not is_in_memory(part):
                    any(self.is_left for _ in read_pieces(part))  # ends early where it is
            with self._lock:
                self._left -= 1
        if not self._left:
            self.done.set()


class RowsAhead:
    """Samples that are read one by one."""

    def __init__(self, samples: Samples, parts: Iterable[FileRange]) -> None:
        self.samples = samples
        self.done = Event()
        self._parts = parts

    def work(self) -> None:
        """Read them."""
        with _reporting("samples"):
            read_small(self._parts)
        self.done.set()


@dataclass(slots=True, eq=False)
class EraRun:
    """Consecutive eras of one pass that are read together."""

    first: Turn
    last: Turn
    bytes: int
    descriptions: list[FileRange]
    """The files that say which blocks count, and where they are, without those that the run before has, too."""
    is_whole: bool
    """Whether all of it is read; else its samples are, one by one."""
    is_awaited: bool
    """Whether the loop waits for it, and needs its descriptions: not of an era of very many segments."""
    reading: PartsAhead


class EraReadAhead:
    """What reads ahead of one loop; its threads begin with the first `reach`, and end with this object."""

    def __init__(
        self, trainable: TrainableSamples, *, most_bytes: int = DEFAULT_BYTES, documents: bool = False
    ) -> None:
        """Read nothing yet; keep ``most_bytes`` ahead; with ``documents``, document tables are read, too."""
        self._samples = trainable
        self._most_bytes = most_bytes
        self._documents = documents
        self._described: set[Path] = set()
        """Manifests of the sealed segments of the last run: what describes these is in memory."""
        self._process = -1
        self._tasks: SimpleQueue[PartsAhead | RowsAhead | None] = SimpleQueue()
        self._runs: deque[EraRun] = deque()
        """Eras that follow each other without a gap, from the one that the loop is in."""
        self._begun: RowsAhead | None = None

    def reach(self, low: int, high: int) -> bool:
        """Have the eras of these samples, as far as they are known, in memory; False: only some. Others follow soon."""
        places = self._samples.places
        first, last = places.place(low), places.place(high)
        if first is None:
            return True
        begin = Turn(first.passed, first.era)
        end = Turn(first.passed, places.last_era()) if last is None else Turn(last.passed, last.era)
        self._begin_threads()
        runs = self._runs
        while runs and not runs[0].first <= begin <= runs[0].last:
            runs.popleft().reading.is_left = True
        while self._wants_more(end) and (turn := self._following(runs[-1].last) if runs else begin) is not None:
            runs.append(self._run(turn))
            for _ in range(_THREADS):
                self._tasks.put(runs[-1].reading)
        wanted = [run for run in runs if run.first <= end]
        for run in wanted:
            if run.is_whole and run.is_awaited and run.bytes <= _WORTH_WAITING:
                run.reading.done.wait()
            elif not run.reading.done.is_set():
                PartsAhead(run.descriptions).work()  # by the loop itself: the threads are at the tokens, perhaps
        return all(run.is_whole and run.reading.done.is_set() for run in wanted)

    def reach_rows(self, samples: Samples) -> None:
        """Have samples in memory: at once if they are those that `begin_rows` has begun."""
        rows, self._begun = self._begun, None
        if rows is not None and all(map(np.array_equal, rows.samples, samples)):
            rows.done.wait()
        else:
            RowsAhead(samples, self._rows(samples)).work()

    def begin_rows(self, samples: Samples) -> None:
        """Begin to read samples that will be wanted next."""
        self._begin_threads()
        self._begun = RowsAhead(samples, list(self._rows(samples)))
        self._tasks.put(self._begun)

    def _begin_threads(self) -> None:
        """Have the threads in this process: those of the process that it was forked from are not here."""
        if self._process != os.getpid():
            self._process, self._tasks, self._runs, self._begun = os.getpid(), SimpleQueue(), deque(), None
            weakref.finalize(self, _end, self._tasks, self._runs)
            for _ in range(_THREADS):
                Thread(target=_work, args=(self._tasks,), name="read-ahead", daemon=True).start()

    def _wants_more(self, end: Turn) -> bool:
        """Whether another run should follow what is wanted, up to twice the 16 MiB that the loop looks up at a time."""
        later = [run for run in self._runs if run.first > end]
        return not later or sum(run.bytes for run in later) < min(32 << 20, self._most_bytes)

    def _following(self, turn: Turn) -> Turn | None:
        places, sequence = self._samples.places, self._samples.sequence
        if turn.era < places.last_era():
            return Turn(turn.passed, turn.era + 1)
        if places.in_pass() and turn.passed + 1 < sequence.passes:
            return Turn(turn.passed + 1, sequence.eras[0])
        return None

    def _run(self, turn: Turn) -> EraRun:
        """Return the eras to be read together from a known one on: one, or several small ones."""
        eras, size = self._samples.eras, self._samples.info.block_bytes
        before, stop, known = eras.blocks_before(turn.era), turn.era + 1, self._samples.places.last_era() + 1
        # The loop waits for the first run, and not for the others: so many that two eras of the default size, or more
        # small ones, share a run's fixed cost.
        together = min(40 << 20, self._most_bytes // 2) if self._runs else 8 << 20
        while stop < known and (eras.blocks_before(stop + 1) - before) * size <= together:
            stop += 1
        count = (eras.blocks_before(stop) - before) * size
        first, last = eras.era(turn.era).ranges, eras.era(stop - 1).ranges
        begins = [part.first for part in first] + [0] * (len(last) - len(first))
        segments = [
            segment
            for partition, (begin, part) in enumerate(zip(begins, last, strict=True))
            for segment in self._segments(partition, range(begin, part.stop))
        ]
        is_awaited = len(segments) <= 256  # noqa: PLR2004 - files that open in 10 ms; of more, few may be needed
        described = self._descriptions([paths for paths, _ in segments]) if is_awaited else []
        is_whole = count <= self._most_bytes // 2
        reading = PartsAhead([*described, *(tokens for _, tokens in segments if is_whole)])
        return EraRun(turn, Turn(turn.passed, stop - 1), count, described, is_whole, is_awaited, reading)

    def _descriptions(self, segments: Sequence[SegmentPaths]) -> list[FileRange]:
        """Return the files that describe segments, without those of sealed ones that the last run was from, too."""
        manifests = [paths.manifest for paths in segments]
        before, self._described = self._described, {path for path in manifests if path.exists()}
        return [
            FileRange(path, 0, _WHOLE)
            for paths, manifest in zip(segments, manifests, strict=True)
            if manifest not in before
            for path in (manifest, paths.index, paths.commits, *([paths.documents] if self._documents else []))
        ]

    def _segments(self, partition: int, blocks: range) -> Iterator[tuple[SegmentPaths, FileRange]]:
        count, size = self._samples.info.segment_blocks, self._samples.info.block_bytes
        for segment in range(blocks.start - blocks.start % count, blocks.stop, count) if blocks else ():
            paths = self._paths(partition, segment)
            low, high = max(blocks.start - segment, 0), min(blocks.stop - segment, count)
            yield paths, FileRange(paths.tokens, low * size, high * size)

    def _rows(self, samples: Samples) -> Iterator[FileRange]:
        """Yield the parts of files that hold samples, each once, in the order of the files."""
        info, views = self._samples.info, self._samples.views
        order = np.lexsort((samples.views, samples.blocks, samples.partitions))
        partitions = samples.partitions[order]
        segments, inside = np.divmod(samples.blocks[order], info.segment_blocks)
        item = info.dtype.itemsize
        step = (info.block_tokens - 1) // views * item
        starts = inside * info.block_bytes + samples.views[order] * step
        apart = (np.diff(partitions) != 0) | (np.diff(segments) != 0) | (np.diff(starts) > step + _GAP_BYTES)
        firsts = np.append(0, np.flatnonzero(apart) + 1)
        lasts = np.append(firsts[1:], len(starts)) - 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            paths = self._paths(int(partitions[first]), int(segments[first]) * info.segment_blocks)
            yield FileRange(paths.tokens, int(starts[first]), int(starts[last]) + step + item)

    def _paths(self, partition: int, segment: int) -> SegmentPaths:
        return SegmentPaths(partition_directory(self._samples.store, self._samples.stream, partition), segment)


def _work(tasks: "SimpleQueue[PartsAhead | RowsAhead | None]") -> None:
    while (task := tasks.get()) is not None:
        task.work()
        del task


def _end(tasks: "SimpleQueue[PartsAhead | RowsAhead | None]", runs: Iterable[EraRun]) -> None:
    for run in runs:
        run.reading.is_left = True
    for _ in range(_THREADS):
        tasks.put(None)


@contextmanager
def _reporting(what: object) -> Iterator[None]:
    try:
        yield
    except (OSError, TokenMillError) as error:
        log.debug("reading ahead goes on without %s: %s", what, error)
