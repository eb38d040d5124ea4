"""Which records are being milled at this moment, so that one that hangs or kills its worker can be named.

Each partition notes what it mills: all records of a feed, and, while a user's function has one of them, that one. The
notes are in memory that the supervisor shares, where there is one, because a process that dies cannot report.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import IO, Final, NamedTuple

BOARD_VARIABLE: Final = "_TOKENMILL_IN_FLIGHT_FD"
"""Like the heartbeat's: with an underscore, because it is no setting."""
_SLOT: Final = Struct("<250pxxiqq")
"""A topic (Kafka allows 249 bytes), a partition, the first and the last offset; an empty topic where there are none."""
_SLOTS: Final = 256
"""Partitions of one worker that are noted; of more, the others are not."""


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
    """The notes of one worker process, in memory that it shares with the process that made the board."""

    def __init__(self, descriptor: int) -> None:
        """Map what a file descriptor stands for; it may be closed afterwards."""
        self._memory = mmap.mmap(descriptor, _SLOT.size * _SLOTS)
        self._free = list(range(_SLOTS))[::-1]

    @staticmethod
    def file() -> IO[bytes]:
        """Return a nameless file, all zeros, that a worker can inherit."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller's
        file.truncate(_SLOT.size * _SLOTS)
        return file

    @classmethod
    def inherited(cls) -> "Board | None":
        """Return the board that a supervisor gave this process; None without one."""
        descriptor = os.environ.get(BOARD_VARIABLE)
        return cls(int(descriptor)) if descriptor is not None else None

    def take(self) -> int | None:
        """Return a slot for a partition; None when there are no more."""
        return self._free.pop() if self._free else None

    def write(self, slot: int, topic: bytes, partition: int, first: int, last: int) -> None:
        """Note the records that are being milled."""
        _SLOT.pack_into(self._memory, slot * _SLOT.size, topic, partition, first, last)

    def clear(self, slot: int) -> None:
        """Note that none are."""
        self._memory[slot * _SLOT.size] = 0

    def give_back(self, slot: int) -> None:
        """Take back a slot whose records are done."""
        self.clear(slot)
        self._free.append(slot)

    def records_in_flight(self) -> Iterator[RecordsInFlight]:
        """Yield what was being milled when the process wrote its last."""
        for number in range(_SLOTS):
            topic, partition, first, last = _SLOT.unpack_from(self._memory, number * _SLOT.size)
            if topic:
                yield RecordsInFlight(topic.decode(errors="replace"), partition, first, last)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


class Note:
    """What one partition is milling; written in the thread that mills, read in the event loop."""

    def __init__(self, topic: str, partition: int, board: Board | None) -> None:
        self._topic = topic
        self._encoded = topic.encode()
        self._partition = partition
        self._board = board
        self._slot = board.take() if board is not None else None
        self._now: tuple[int, int, float] | None = None
        self._closed = False

    def __call__(self, first: int, last: int) -> None:
        """Note that the records from ``first`` to ``last`` are being milled, or one of them."""
        self._now = (first, last, time.monotonic())
        if self._board is not None and self._slot is not None:
            self._board.write(self._slot, self._encoded, self._partition, first, last)

    def done(self) -> None:
        """Note that nothing is being milled. Not for who ends the process: the note is to be read afterwards."""
        self._now = None
        if self._board is not None and self._slot is not None:
            self._board.clear(self._slot)
        if self._closed:
            self.close()

    def hanging(self, seconds: float) -> RecordsInFlight | None:
        """Return what has been milled for so long, without a step forward; None if nothing has."""
        now = self._now
        if now is None or time.monotonic() - now[2] < seconds:
            return None
        return RecordsInFlight(self._topic, self._partition, now[0], now[1])

    def close(self) -> None:
        """Give the slot back: now, or when the records are done that are still being milled."""
        self._closed = True
        if self._now is None:
            if self._board is not None and self._slot is not None:
                self._board.give_back(self._slot)
            self._slot = None


class DeadlyRecords:
    """Remembers, for each partition, what was being milled when a worker died there."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], RecordsInFlight] = {}

    def died(self, in_flight: Iterable[RecordsInFlight]) -> list[RecordsInFlight]:
        """Take what a worker was milling when it died; return what was being milled at the death before as well.

        One death proves nothing: most are somebody's SIGKILL. A record that kills is there every time.
        """
        again = []
        for found in in_flight:
            where = (found.topic, found.partition)
            before = self._known.get(where)
            common = _common(before, found) if before is not None else None
            if common is not None:
                again.append(common)
            self._known[where] = common or found
        return again


def _common(one: RecordsInFlight, other: RecordsInFlight) -> RecordsInFlight | None:
    first, last = max(one.first, other.first), min(one.last, other.last)
    return RecordsInFlight(other.topic, other.partition, first, last) if first <= last else None
