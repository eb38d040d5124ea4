"""Duplicates among what is packed: each process signs its documents, and this one judges them in their numbers' order.

So verdicts are a function of the sources alone, whatever the processes do, and in whichever parts documents come. A
round is what was dealt out to all partitions since the round before; while it is signed, that one is judged.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.records import SourceRecord

from ...milling.duplicates.parameters import Deduplication
from ...milling.duplicates.signatures import Hashes
from ...milling.duplicates.signing import sign_records
from ...milling.duplicates.verdicts import Verdicts, rejections
from ...milling.duplicates.window import Window
from ...milling.outcomes import Stages
from ...milling.partition_mill import Looked, PartitionMill

if TYPE_CHECKING:
    from .mill_processes import DocumentBatch, Millers

Integers: TypeAlias = npt.NDArray[np.int64]


class Signed(NamedTuple):
    """The documents of a batch that the steps keep."""

    offsets: Integers
    hashes: Hashes


class Signer:
    """Signs what is dealt out to one partition, and holds it until the verdicts come."""

    def __init__(self, mill: PartitionMill, deduplication: Deduplication, stages: Stages, topic: str) -> None:
        """Tell the verdicts to ``stages``, which are those of the mill alone."""
        self._mill, self._deduplication, self._seen, self._topic = mill, deduplication, stages.seen, topic
        self._begin = mill.next_offset
        """Documents before it are milled: they are signed for others' sake."""
        self._waiting: deque[tuple[Sequence[SourceRecord], Looked]] = deque()

    def sign(self, records: Sequence[SourceRecord]) -> Signed:
        """Take the next records through the steps, and hold those that are to be milled. Raises as the mill."""
        found = sign_records(self._mill, self._deduplication, records, self._begin)
        self._waiting.append((found.milled, found.looked))
        return Signed(found.offsets, found.hashes)

    def judged(self, offsets: Integers, verdicts: Verdicts) -> tuple[Sequence[SourceRecord], Looked]:
        """Return the records that were signed first of those that wait; what is told of their duplicates is known."""
        told = rejections(verdicts, lambda partition, offset: f"{self._topic}/{partition}/{offset}")
        self._seen.clear()
        self._seen.update((int(offset), one) for offset, one in zip(offsets.tolist(), told, strict=True) if one)
        return self._waiting.popleft()


class _Part(NamedTuple):
    batch: "DocumentBatch"
    numbers: Integers
    size: int
    signed: "Future[Signed]"


class Judging:
    """Judges documents in the order of their numbers, and gives them on to be milled."""

    def __init__(
        self, millers: "Millers", deduplication: Deduplication, directory: Path, number: int = 0, kept: int = 0
    ) -> None:
        """Go on before the document ``number``, when ``kept`` documents were kept; as `Window`."""
        self._millers = millers
        self.window = Window(deduplication, directory, kept)
        self._rounds: deque[list[_Part]] = deque()
        self._mark, self._marked = number, kept

    def mark(self, number: int) -> None:
        """Remember the place before the document ``number``, of which no later one is dealt out yet."""
        self._mark, self._marked = number, -1

    @property
    def kept(self) -> int:
        """How many documents before the place were kept, once all are judged."""
        return self._marked if self._marked >= 0 else self.window.kept

    async def deal(self, parts: Sequence[tuple["DocumentBatch", Sequence[int], int]]) -> None:
        """Have a round signed: batches, the numbers of their documents, and their bytes. Raises as `Millers.mill`."""
        self._rounds.append(
            [
                _Part(batch, np.array(numbers, np.int64), size, self._millers.sign(batch))
                for batch, numbers, size in parts
            ]
        )
        if len(self._rounds) > 1:
            await self._judge(self._rounds.popleft())

    async def settle(self) -> None:
        """Judge all that was dealt out, and give it on. Raises as `Millers.mill`."""
        while self._rounds:
            await self._judge(self._rounds.popleft())

    async def _judge(self, parts: Sequence[_Part]) -> None:
        signed = [(part, await asyncio.wrap_future(part.signed)) for part in parts]
        if not parts:
            return
        numbers = np.concatenate([part.numbers[one.offsets - part.batch.first_offset] for part, one in signed])
        places = np.concatenate([_places(part.batch.partition, one.offsets) for part, one in signed])
        order, before = np.argsort(numbers), self.window.kept
        found = self.window.judge(np.concatenate([one.hashes for _, one in signed])[order], places[order])
        if self._marked < 0 and any(part.numbers[-1] >= self._mark for part in parts):
            self._marked = before + int(((found.kinds == 0) & (numbers[order] < self._mark)).sum())
        back = np.argsort(order)
        kinds, told, begin = found.kinds[back], found.places[back], 0
        for part, one in signed:
            end = begin + len(one.offsets)
            verdicts = Verdicts(kinds[begin:end], told[begin:end])
            await self._millers.judged(part.batch.partition, one.offsets, verdicts, part.size)
            begin = end


def _places(partition: int, offsets: Integers) -> Hashes:
    return np.column_stack([np.full(len(offsets), partition), offsets]).astype(np.uint64)
