"""Reading the files of the eras that come next, in threads of their own, so that the training loop waits for no disk.

A shuffled era is read in no order of its file, so its first batch may need the last page. The threads therefore read
whole eras in the order of their files, at the disk's full speed: the one that the loop is in, and the one after it. One
says what is read, and both read it, each another partition's file: so the disk is never without something to do.
The loop waits once for the first of them. Eras that are larger than what may be kept ahead, and the beginning of a
large one, are read by sample: those of the batches that are made next, and those after them.

What is read goes to the system's page cache (`tokenmill.store.maps`), where it counts as no process's memory, and
where the other ranks of the host find it. Nothing depends on it: what is not there yet, or was evicted, is read when it
is touched.
"""

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any, Final, NamedTuple

import numpy as np

from tokenmill.errors import TokenMillError
from tokenmill.samples import Samples, SequenceId, TrainableSamples
from tokenmill.samples.era_lookup import EraPlaces
from tokenmill.store import StreamInfo, open_eras
from tokenmill.store.layout import SegmentPaths, partition_directory
from tokenmill.store.maps import FileRange, is_in_memory, read_pieces, read_small

from .arguments import whole

_RUN_BYTES: Final = 8 << 20
"""Consecutive small eras that are read as one: their blocks follow each other in each partition. The loop waits for the
first of them ..."""
_LATER_BYTES: Final = 32 << 20
"""... and for none of the others, so what each costs beside its bytes is shared by more of them."""
_GAP_BYTES: Final = 32 << 10
"""Between two samples in a file: to read them is cheaper than another request."""
_AWAITED_SEGMENTS: Final = 256
"""Of an era: opening the files of so many takes 10 ms. The loop does not wait for more, for it may need few of them."""
_WHOLE: Final = 1 << 62
"""Behind the end of any file."""
logger = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 1 << 30
"""Of tokens kept ahead: two eras of 512 MiB, thirty times the default."""
_AHEAD_AT_LEAST: Final = 32 << 20
"""Small eras are read ahead up to so many bytes, for the loop looks up 16 MiB at a time."""
_WORTH_WAITING: Final = 64 << 20
"""Of an era, bytes yet to be read for which the loop waits: 50 ms on a disk of 1.3 GB/s. Where there are more, the
samples of the next batches come first."""
_POLL_SECONDS: Final = 0.5
"""How often a waiting loop lets signals through."""


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

    def run(self, turn: Turn, most_bytes: int, *, later: bool = False) -> EraRun:
        """Return the eras to be read together from a known one on: one, or several small ones.

        ``later``: they follow others that are read, or being read.
        """
        together = min(_LATER_BYTES, most_bytes) if later else _RUN_BYTES
        before, size = self.eras.blocks_before(turn.era), self._info.block_bytes
        stop, known = turn.era + 1, self._places.last_era() + 1
        while stop < known and (self.eras.blocks_before(stop + 1) - before) * size <= together:
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


@dataclass(slots=True)
class RowsAhead:
    """Samples that are read one by one; ``done`` when they are in memory."""

    samples: Samples
    done: Event = field(default_factory=Event)


class _Reading:
    """What two threads do, and what the loop knows of it. Only one of them changes the list of runs, under the lock."""

    def __init__(self, most_bytes: int) -> None:
        self.rows: deque[RowsAhead] = deque()
        self._most_bytes = most_bytes
        self._runs: deque[EraRun] = deque()
        """Eras that follow each other without a gap, from the one that the loop is in."""
        self._asked: tuple[Turn, Turn] | None = None
        """The first and the last era that the loop wants next."""
        self._looked: tuple[Turn, Turn] | None = None
        """What was asked for when no further era was known."""
        self._changed = Condition()
        self._ended = False

    def end(self) -> None:
        """Have the thread end, now or after what it is reading, and nobody wait for it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def add(self, samples: Samples) -> RowsAhead:
        """Have samples read before all else."""
        rows = RowsAhead(samples)
        with self._changed:
            self.rows.append(rows)
            self._changed.notify_all()
        return rows

    def wait_for(self, rows: RowsAhead) -> None:
        """Wait until these samples are read."""
        while not self._ended and not rows.done.wait(_POLL_SECONDS):
            pass

    def reach(self, first: Turn, last: Turn) -> bool:
        """Wait until these eras are read; False where that is not worth it, or they are too large to be read whole."""
        with self._changed:
            self._asked = (first, last)
            self._changed.notify_all()
            while not self._ended:
                runs = [run for run in self._runs if run.last >= first and run.first <= last]
                awaited = [run for run in runs if run.is_awaited]
                if runs and runs[0].first <= first and runs[-1].last >= last and all(run.is_planned for run in awaited):
                    left = sum(run.left for run in awaited)
                    if not left or left > _WORTH_WAITING or not all(run.is_whole for run in runs):
                        return not left
                self._changed.wait(_POLL_SECONDS)
        return True

    def work(self, files: StreamFiles) -> None:
        """Read until it is ended: samples first, then eras, each in pieces."""
        while (task := self._next(files)) is not None:
            if isinstance(task, RowsAhead):
                self._read_rows(task, files)
            elif not task.is_planned:
                for description in files.descriptions(task) if task.is_awaited else ():
                    for _ in read_pieces(description):
                        pass
                parts = [part for part in files.tokens(task) if not is_in_memory(part)] if task.is_whole else []
                with self._changed:
                    task.parts.extend(parts)
                    task.left = sum(part.stop - part.first for part in parts) if task.is_whole else task.left
                    task.is_planned = True
                    self._changed.notify_all()
            elif (part := self._begin_part(task)) is not None:
                self._read_part(task, part, files)

    def assist(self) -> None:
        """Read parts of eras beside who works, until it is ended.

        While one of the two waits for its turn in this process, the disk has something to do for the other.
        """
        while (run := self._next_to_assist()) is not None:
            if (part := self._begin_part(run)) is not None:
                self._read_part(run, part, None)

    def _next_to_assist(self) -> EraRun | None:
        with self._changed:
            while not self._ended:
                for run in self._runs:
                    if run.parts and not self._is_stale(run):
                        return run
                self._changed.wait()
        return None

    def _read_rows(self, rows: RowsAhead, files: StreamFiles) -> None:
        read_small(files.rows(rows.samples))
        rows.done.set()

    def _begin_part(self, run: EraRun) -> FileRange | None:
        with self._changed:
            run.begun += bool(run.parts)
            return run.parts.popleft() if run.parts else None

    def _read_part(self, run: EraRun, part: FileRange, files: StreamFiles | None) -> None:
        """Read a part of a run, and with ``files`` all samples that are asked for meanwhile."""
        is_whole = True
        for count in read_pieces(part):
            with self._changed:
                run.left = max(run.left - count, 1)
                if self._ended or self._is_stale(run):
                    is_whole = False
                    break
            while files is not None and self.rows:
                self._read_rows(self.rows.popleft(), files)
        with self._changed:
            run.begun -= 1
            if not is_whole:
                run.parts.appendleft(part)
            elif not run.begun and not run.parts:
                run.left = 0
                self._changed.notify_all()

    def _is_stale(self, run: EraRun) -> bool:
        """Whether the loop has gone where this run is of no use."""
        if run not in self._runs:
            return True
        return self._asked is not None and not self._runs[0].first <= self._asked[0] <= run.last

    def _next(self, files: StreamFiles) -> "RowsAhead | EraRun | None":
        """Return what is to be read next, once there is something; None at the end."""
        while True:
            with self._changed:
                while not self._ended and not self.rows and not self._has_work():
                    self._changed.wait()
                if self._ended:
                    return None
                if self.rows:
                    return self.rows.popleft()
                asked = self._asked
                found = self._unfinished()
                fits = found is not None and (asked is None or self._runs[0].last >= asked[0] >= self._runs[0].first)
                is_short = sum(len(run.parts) for run in self._runs) <= 1  # the other thread wants one, too
            if asked is not None and (not fits or (is_short and found is not None and found.is_planned)):
                self._plan(files, asked)
            if fits:
                return found

    def _has_work(self) -> bool:
        if self._asked is None:
            return False
        if self._unfinished() is not None:
            return True
        if self._asked == self._looked:
            return False
        stands = bool(self._runs) and self._runs[0].first <= self._asked[0] <= self._runs[0].last
        return not stands or self._wants_more(self._asked)

    def _unfinished(self) -> EraRun | None:
        return next((run for run in self._runs if not run.is_planned or run.parts), None)

    def _wants_more(self, asked: tuple[Turn, Turn]) -> bool:
        """Whether another run should follow: one after what was asked for, and more where these are small."""
        if asked == self._looked:
            return False
        later = [run for run in self._runs if run.first > asked[1]]
        ahead = sum(run.bytes for run in later)
        return not later or ahead < min(_AHEAD_AT_LEAST, self._most_bytes)

    def _plan(self, files: StreamFiles, asked: tuple[Turn, Turn]) -> None:
        """Forget runs that the loop has left, and add the one that follows."""
        first, _ = asked
        with self._changed:
            while self._runs and self._runs[0].last < first:
                self._runs.popleft()
            if self._runs and self._runs[0].first > first:
                self._runs.clear()
            last = self._runs[-1].last if self._runs else None
            if last is not None and not self._wants_more(asked):
                return
        if (turn := first if last is None else files.following(last)) is None and files.eras.refresh() and last:
            turn = files.following(last)
        if turn is None or (turn.era >= files.eras.eras and turn.era >= files.eras.refresh()):
            self._looked = asked
            return
        run = files.run(turn, self._most_bytes // 2, later=last is not None)
        with self._changed:
            self._runs.append(run)
            self._changed.notify_all()


class EraReadAhead:
    """The threads that read ahead of one loop; they begin with the first `reach`, and end with this object."""

    def __init__(
        self,
        store: Path,
        info: StreamInfo,
        sequence: SequenceId,
        views: int,
        *,
        most_bytes: int = DEFAULT_BYTES,
        documents: bool = False,
    ) -> None:
        """Read nothing yet; keep ``most_bytes`` ahead."""
        self._open = partial(StreamFiles, store, info, sequence, views, documents=documents)
        self._most_bytes = most_bytes
        self._process = -1
        self._reading = _Reading(most_bytes)
        self._begun: RowsAhead | None = None
        """Samples that are read before they are wanted."""

    def reach(self, places: EraPlaces, low: int, high: int) -> bool:
        """Have the eras of samples ``low`` to ``high`` in memory, and some behind them soon; False: only some of them.

        ``places`` says which these are, as far as they are known: for others there is nothing to read yet.
        """
        first = places.place(low)
        if first is None:
            return True
        last = places.place(high)
        stop = Turn(first.passed, places.last_era()) if last is None else Turn(last.passed, last.era)
        return self._running().reach(Turn(first.passed, first.era), stop)

    def reach_rows(self, samples: Samples) -> None:
        """Have samples in memory: at once if they are those that `begin_rows` has begun."""
        reading, rows = self._running(), self._begun
        if rows is None or not all(map(np.array_equal, rows.samples, samples)):
            rows = reading.add(samples)
        self._begun = None
        reading.wait_for(rows)

    def begin_rows(self, samples: Samples) -> None:
        """Begin to read samples that will be wanted next."""
        self._begun = self._running().add(samples)

    def _running(self) -> _Reading:
        """Return what a thread of this process works at: none of a process that this one was forked from does."""
        if self._process != os.getpid():
            self._process, self._reading, self._begun = os.getpid(), _Reading(self._most_bytes), None
            weakref.finalize(self, self._reading.end)
            for task in (partial(_work, self._reading, self._open), partial(_assist, self._reading)):
                Thread(target=task, name="read-ahead", daemon=True).start()
        return self._reading


def open_read_ahead(most_bytes: Any, trainable: TrainableSamples, *, documents: bool) -> EraReadAhead | None:
    """Return what reads ahead for a loop over these samples; None where nothing is.

    Raises:
        InputError: ``most_bytes`` is no number of bytes, 0 or more.

    """
    most_bytes = whole("read_ahead", most_bytes, 0, "bytes")
    files = (trainable.store, trainable.info, trainable.sequence, trainable.views)
    return EraReadAhead(*files, most_bytes=most_bytes, documents=documents) if most_bytes else None


def _work(reading: _Reading, open_files: Callable[[], StreamFiles]) -> None:
    """Read ahead until that is ended, or fails: the loop then meets the same fault where it reads, and reports it."""
    with _ending(reading):
        reading.work(open_files())


def _assist(reading: _Reading) -> None:
    """Do the same beside it."""
    with _ending(reading):
        reading.assist()


@contextmanager
def _ending(reading: _Reading) -> Iterator[None]:
    """End all of it with what is done here."""
    try:
        yield
    except (OSError, TokenMillError) as error:
        logger.debug("reading ahead ends: %s", error)
    finally:
        reading.end()
