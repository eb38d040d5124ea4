"""Which records are being worked on, and which were when workers died: who may be to blame.

The notes are in memory that a supervisor shares, because a process that dies cannot report. What was noted at a death
it writes into a file that all its workers read. Records that were in flight at a death are worked on one by one; at the
third for the same ones, the partition halts before them. That is no outcome: what becomes of a record depends on its
bytes alone.
"""

import asyncio
import mmap
import os
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import groupby
from struct import Struct
from typing import IO, Any, Final, NamedTuple, TypeVar

from aiokafka import TopicPartition

from tokenmill import errors
from tokenmill.documents import SourceRecord

from ..kafka.fetched_batches import FetchedBatch, PackedBatch

BOARD_VARIABLE: Final = "_TOKENMILL_IN_FLIGHT_FD"
"""Like the heartbeat's: with an underscore, because it is no setting."""
DEATHS_VARIABLE: Final = "_TOKENMILL_DEATHS_FD"
"""Names the file of deaths, the same one for all workers of a supervisor."""
_SLOT: Final = Struct("<250pxxiqq")
"""A topic (Kafka allows 249 bytes), a partition, the first and the last offset; an empty topic where there are none."""
_SLOTS: Final = 256
"""Partitions of one worker that are noted; of more, the others are not."""
MOST_DEATHS: Final = 3
"""A record that was in flight at so many is not tried again. One proves nothing, for most are somebody's SIGKILL; after
the second, which record it is is known."""
KEPT_DEATHS: Final = 64
"""Of a partition, the last ones: records that were passed since come no more."""
ALONE_SECONDS: Final = 15.0
"""A worker that takes longer to end hangs; its records are not to blame."""


class RecordsInFlight(NamedTuple):
    """Records of which one may be to blame."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        """Name them, and the command that leaves one out."""
        where = f"{self.topic}[{self.partition}]"
        if self.first == self.last:
            return f"offset {self.first} of {where} (`tokenmill skip {self.topic} {self.partition} {self.first}`)"
        return (
            f"one of the offsets {self.first} to {self.last} of {where} "
            f"(`tokenmill skip {self.topic} {self.partition} OFFSET`)"
        )


class Board:
    """The notes of one worker process, in memory that it shares with the process that made the board, if one did."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map what a file descriptor stands for, which may be closed afterwards; memory of our own without one."""
        self.memory = mmap.mmap(descriptor, _SLOT.size * _SLOTS)
        self.free = [slot * _SLOT.size for slot in reversed(range(_SLOTS))]
        """Where in the memory a partition may note what it has in hand."""
        self.pardoned = self._convicted = False
        self._alone = threading.Lock()

    @staticmethod
    def file() -> IO[bytes]:
        """Return a nameless file, all zeros, that a worker can inherit."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
        file.truncate(_SLOT.size * _SLOTS)
        return file

    @staticmethod
    @cache
    def inherited() -> "Board":
        """Return the one board of this process: that of its supervisor, or one of its own that is not read."""
        return Board(int(os.environ.get(BOARD_VARIABLE) or -1))

    def convict(self) -> None:
        """Keep what is noted when this process ends: something that is being worked on is the reason."""
        self._convicted = True

    def pardon(self) -> None:
        """Forget what is noted, unless it is why the process ends: whatever it has in hand is not to blame."""
        if not self._convicted:
            self.pardoned = True
            self.memory[:] = bytes(len(self.memory))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have one record that was in flight at a death in hand: a second one would be blamed for its effects."""
        lock = self._alone
        taken = lock.acquire(timeout=ALONE_SECONDS)
        if not taken:
            self._alone = threading.Lock()  # other threads do not wait for one that hangs
        try:
            yield
        finally:
            if taken:
                lock.release()

    def records_in_flight(self) -> list[RecordsInFlight]:
        """Return what was being worked on when the process wrote its last."""
        return _notes(self.memory[:])

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()


def _notes(data: bytes) -> list[RecordsInFlight]:
    return [RecordsInFlight(one[0].decode(errors="replace"), *one[1:]) for one in _SLOT.iter_unpack(data) if one[0]]


class Note:
    """What one partition has in hand; written in the thread that works, read in the event loop."""

    def __init__(self, topic: str, partition: int, board: Board) -> None:
        self._topic = topic
        self._partition = partition
        self._board = board
        self._slot = board.free.pop() if board.free else None
        self._now: tuple[int, int, float] | None = None
        self._closed = False

    def __call__(self, first: int, last: int) -> None:
        """Note that the records from ``first`` to ``last`` are being worked on, or one of them."""
        self._now = (first, last, time.monotonic())
        if self._slot is not None and not self._board.pardoned:
            _SLOT.pack_into(self._board.memory, self._slot, self._topic.encode(), self._partition, first, last)

    def done(self) -> None:
        """Note that nothing is in hand. Not for the end of the process, after which the note is read."""
        self._now = None
        if self._slot is not None:
            self._board.memory[self._slot] = 0
        if self._closed:
            self.close()

    def hanging(self, seconds: float) -> RecordsInFlight | None:
        """Return what has been worked on for so long, without a step forward; None if nothing has."""
        now = self._now
        if now is None or time.monotonic() - now[2] < seconds:
            return None
        return RecordsInFlight(self._topic, self._partition, now[0], now[1])

    def close(self) -> None:
        """Give the slot back: now, or when the records are done that are still being worked on."""
        self._closed = True
        if self._now is None and self._slot is not None:
            self._board.free.append(self._slot)
            self._slot = None


def nameless_file() -> int:
    """Return the descriptor of an empty file, which stays open, for a supervisor and all its workers."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Deaths:
    """What was in flight at the deaths of workers: a file that a supervisor appends to, and that its workers read."""

    def __init__(self, descriptor: int) -> None:
        """Read, or write, the file that a descriptor stands for; it must stay open."""
        self._file = descriptor
        self._read = 0
        self._known: dict[tuple[str, int], deque[RecordsInFlight]] = defaultdict(lambda: deque(maxlen=KEPT_DEATHS))

    @staticmethod
    @cache
    def inherited() -> "Deaths":
        """Return what a supervisor gave this process; without one, no death is known."""
        return Deaths(int(os.environ.get(DEATHS_VARIABLE) or nameless_file()))

    def add(self, in_flight: Iterable[RecordsInFlight]) -> None:
        """Write down what a worker had in hand when it died."""
        os.write(self._file, b"".join(_SLOT.pack(one.topic.encode(), *one[1:]) for one in in_flight))

    def of(self, topic: str, partition: int) -> Collection[RecordsInFlight]:
        """Return what was in flight at the last deaths of a partition's owners, as of this moment."""
        while whole := len(data := os.pread(self._file, _SLOT.size * _SLOTS, self._read)) // _SLOT.size * _SLOT.size:
            self._read += whole
            for one in _notes(data[:whole]):
                self._known[one.topic, one.partition].append(one)
        return self._known.get((topic, partition), ())


def deadly(deaths: Collection[RecordsInFlight], skips: Collection[int] = ()) -> RecordsInFlight | None:
    """Return the records, mostly one, that were in flight at `MOST_DEATHS` of a partition; None where none were.

    Two of them name these alone, so that they are no neighbours of others. What is in ``skips`` is tried as often
    again.
    """
    for one in sorted(set(deaths), key=lambda noted: noted.last - noted.first):
        around = [death for death in deaths if death.first <= one.first and one.last <= death.last]
        allowed = MOST_DEATHS * (1 + sum(one.first <= offset <= one.last for offset in skips))
        if len(around) >= allowed and around.count(one) > 1:
            return one
    return None


HALTING: Final = (
    *(errors.SourceError, errors.GapError, errors.DifferenceError, errors.DamagedError),
    *(errors.FingerprintError, errors.EngineError, errors.DeadlyRecordError),
)
"""What a new start does not get over for this partition, while the others can go on: it waits until a person acts."""
ROOM: Final = 8 << 20
"""Bytes of keys, values and headers that are unpacked before they are milled: compressed, a fetch may hold a thousand
times what it takes on the wire."""
HEADER_BYTES: Final = 100

T = TypeVar("T")


class Containment:
    """All work on records of one partition, in threads; the notes are those of its worker's `Board`."""

    def __init__(self, tp: TopicPartition, board: Board, deaths: Deaths) -> None:
        self.note = Note(tp.topic, tp.partition, board)
        self._tp = tp
        self._board = board
        self._deaths = deaths
        self._known: Collection[RecordsInFlight] = ()
        self._deadly: RecordsInFlight | None = None

    def look(self, skips: Collection[int]) -> None:
        """Learn what workers died of so far; what a person wants ``skips`` for is tried again."""
        self._known = self._deaths.of(*self._tp)
        self._deadly = deadly(self._known, skips)

    async def shares(self, batch: FetchedBatch) -> AsyncIterator[FetchedBatch]:
        """Divide what a fetch brought into what is fed at once; the last has its position. Raises DeadlyRecordError."""
        fetched, position = deque(batch.records), -1
        while fetched:
            for records in self.runs(await asyncio.to_thread(self._unpack, fetched)):
                position = records[-1].offset + 1
                yield replace(batch, records=records, position=position)
        if position != batch.position:
            yield replace(batch, records=(), position=batch.position)

    def _unpack(self, fetched: deque[Any]) -> list[SourceRecord]:
        """Take batches off, about `ROOM` bytes of records; those that aiokafka has unpacked all at once."""
        records: list[SourceRecord] = []
        size = 0
        while fetched and size < ROOM:
            batch = fetched[0]
            if isinstance(batch, PackedBatch):
                if records and self._were_in_flight(batch.first, batch.end - 1):
                    break  # what is before it is milled first
                found = self.work(batch.first, batch.end - 1, batch.unpack)
                size += sum(len(r.value or b"") + len(r.key or b"") + HEADER_BYTES * len(r.headers) for r in found)
                records += found
            else:
                records.append(batch)
            fetched.popleft()
        return records

    def runs(self, records: Sequence[SourceRecord]) -> Iterator[Sequence[SourceRecord]]:
        """Divide consecutive records: each one that was in flight at a death is alone."""
        if records and not self._were_in_flight(records[0].offset, records[-1].offset):
            yield records
            return
        for alone, run in groupby(records, lambda record: self._were_in_flight(record.offset, record.offset)):
            together = [*run]
            yield from ([record] for record in together) if alone else [together]

    def work(self, first: int, last: int, action: Callable[[], T]) -> T:
        """Do something with records, in a thread, and note it; what ends the process leaves the note.

        Raises DeadlyRecordError where these records have killed workers.
        """
        with self._board.alone() if self._were_in_flight(first, last) else nullcontext():
            found = self._deadly
            if found is not None and found.first <= first and last <= found.last:
                raise errors.DeadlyRecordError(
                    f"{MOST_DEATHS} workers have died while they worked on {found}: skip it, or start the service "
                    "again, with more memory for example; it is not tried before"
                )
            self.note(first, last)
            try:
                done = action()
            except errors.PanicError as error:
                words = f"{error}; to go on without it: {self.note.hanging(0)}"
                self.note.done()
                raise errors.PanicError(words) from error
            except (*HALTING, errors.RegistryError):
                self.note.done()
                raise
            except BaseException:
                self._board.convict()
                raise
            self.note.done()
        return done

    def _were_in_flight(self, first: int, last: int) -> bool:
        return any(one.first <= last and first <= one.last for one in self._known)
