"""Work on the records of one raw partition, noted so that one that kills workers is found, and kept from the next.

Records that were in flight at a death are worked on one by one, and no two of them at once in this process. At the
third death that is noted for the same ones, the partition halts before them. That is no outcome: what becomes of a
record depends on its bytes alone, and whoever can work on it, a worker with more memory for example, does.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, TypeVar

from faust.types import TP

from tokenmill.errors import (
    DamagedError,
    DeadlyRecordError,
    DifferenceError,
    EngineError,
    FingerprintError,
    GapError,
    PanicError,
    RegistryError,
    SourceError,
)
from tokenmill.records import SourceRecord

from ..kafka.fetched_batches import PackedBatch
from ..worker.in_flight import MOST_DEATHS, Board, Deaths, Note, RecordsInFlight, deadly
from ..worker.ownership import FetchedBatch

HALTING: Final = (
    *(SourceError, GapError, DifferenceError, DamagedError, FingerprintError, EngineError),
    DeadlyRecordError,
)
"""What a new start does not get over for this partition, while the others can go on: it waits until a person acts."""
ROOM: Final = 8 << 20
"""Bytes of keys, values and headers that are unpacked before they are milled: compressed, a fetch may hold a thousand
times what it takes on the wire."""
HEADER_BYTES: Final = 100
"""What a header takes as an object."""

T = TypeVar("T")


class Containment:
    """All work on records of one partition, in threads; the notes are those of its worker's `Board`."""

    def __init__(self, tp: TP, board: Board, deaths: Deaths) -> None:
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
        """Divide what a fetch brought into what is fed at once; the last share has the fetch's position.

        Raises:
            DeadlyRecordError: what comes next has killed workers; all before it was yielded.

        """
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
        """Do something with records from ``first`` to ``last``, in a thread, and note it.

        What ends the process leaves the note; what the partition halts over, or waits for, does not.

        Raises:
            DeadlyRecordError: these records have killed workers.

        """
        with self._board.alone() if self._were_in_flight(first, last) else nullcontext():
            self._require_harmless(first, last)
            self.note(first, last)
            try:
                done = action()
            except PanicError as error:
                words = f"{error}; to go on without it: {self.note.hanging(0)}"
                self.note.done()
                raise PanicError(words) from error
            except (*HALTING, RegistryError):
                self.note.done()
                raise
            except BaseException:
                self._board.convict()
                raise
            self.note.done()
        return done

    def _were_in_flight(self, first: int, last: int) -> bool:
        return any(one.meets(first, last) for one in self._known)

    def _require_harmless(self, first: int, last: int) -> None:
        found = self._deadly
        if found is not None and found.first <= first and last <= found.last:
            raise DeadlyRecordError(
                f"{MOST_DEATHS} workers have died while they worked on {found}: it is not tried again before it is "
                "skipped or the service is started again, with more memory, for example"
            )
