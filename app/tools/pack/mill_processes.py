"""The processes that mill, and scan parts of files: what they are asked, and what they answer; and what judges for all.

Each has some of the partitions. It does what it is asked in order, but scans first: others wait for what is in a part.

Where duplicates are looked for, each process signs its documents, and this one judges them in their numbers' order: so
verdicts are a function of the sources alone, whatever the processes do.
"""

import asyncio
import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.documents import FLUSH_HEADER, Record, SourceRecord
from tokenmill.errors import TokenMillError
from tokenmill.recipe import Genesis

from ...milling.duplicates.signatures import Deduplication, Hashes, Verdicts, deduplication_of, rejections, sign_records
from ...milling.duplicates.window import Window
from ...milling.outcomes import Stages
from ...milling.partition_mill import Looked
from ...milling.recipe_stages import reopen_stages
from ...milling.tokenizers import EngineName, TokenizerFile
from ...processes import allow_more_files, keep_loaded, side_processes
from ...sources.file_sources import Reading
from ...sources.items import FileSlice, Item, with_end
from .packed_partition import ChainEnd, PackFiles
from .parted_sources import Part, ScannedPart, read_slices, scan

if TYPE_CHECKING:  # they import what is here, or all that a verification needs
    from ..verify.sides import ReferenceSample
    from .pack_verification import PartitionVerifier
    from .packed_partition import PartitionPacker

T = TypeVar("T")
Integers: TypeAlias = npt.NDArray[np.int64]

WAITING_BYTES: Final = 16 << 20
"""Of documents that wait at a process."""
NO_TIME: Final = -1
"""A document in a file has no time."""
_NO_SLICE: Final = -1
_SCANS, _OTHERS, _END = range(3)  # which requests come first


@dataclass(frozen=True, slots=True)
class MillTask:
    """What all processes need to know."""

    store: Path
    geneses: Sequence[Genesis]
    tokenizer: TokenizerFile
    lists: Mapping[str, bytes]
    engine: EngineName
    reading: Reading
    files: PackFiles
    threads: int
    rejects: bool
    open_partition: "Callable[[MillTask, Stages, int], PartitionPacker | PartitionVerifier]"
    sample: "ReferenceSample | None" = None


class DocumentBatch(NamedTuple):
    """Consecutive documents of a partition."""

    partition: int
    first_offset: int
    files: Sequence[tuple[str, str]]
    """Path and root (`FileSlice`)."""
    slices: Integers
    """Shape ``[documents, 3]``: file, begin and length; -1 where the value is among ``values``."""
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    """None at all where no document has one; so with ``ends``."""
    ends: Sequence[bytes] = ()


Request: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a method of `_Miller`, and its arguments."""
Ends: TypeAlias = dict[int, dict[str, ChainEnd]]
"""By partition and split."""


def batch_of(partition: int, first_offset: int, items: Sequence[Item]) -> DocumentBatch:
    """Return a batch of documents, whose values may be `FileSlice`."""
    files: dict[tuple[str, str], int] = {}
    values: list[bytes] = []
    rows: list[tuple[int, int, int]] = []
    ends: list[bytes] = []
    for item in items:
        value: bytes | FileSlice = item.value
        if isinstance(value, FileSlice):
            rows.append((files.setdefault((value.path, value.root), len(files)), value.begin, value.length))
            ends.append(value.end)
        else:
            rows.append((_NO_SLICE, 0, 0))
            values.append(value)
            ends.append(b"")
    slices = np.array(rows, np.int64).reshape(-1, 3)
    keys = [item.key for item in items] if any(item.key is not None for item in items) else []
    return DocumentBatch(partition, first_offset, [*files], slices, values, keys, ends if any(ends) else ())


def records_of(batch: DocumentBatch) -> list[Record]:
    """Return the batch's records. Raises SourceError where a file is shorter than it was."""
    found = [b""] * len(batch.slices)
    for number, place in enumerate((None, *batch.files), _NO_SLICE):
        at, values = np.flatnonzero(batch.slices[:, 0] == number), batch.values
        if place is not None:
            at = at[np.argsort(batch.slices[at, 1])]  # documents may be shuffled
            _, begins, lengths = batch.slices[at].T.tolist()
            values = read_slices(place, begins, lengths)
        for one, value in zip(at.tolist(), values, strict=True):
            found[one] = value
    if batch.ends:
        found = [with_end(value, end) if end else value for value, end in zip(found, batch.ends, strict=True)]
    keys: Sequence[bytes | None] = batch.keys or [None] * len(found)
    offsets = itertools.count(batch.first_offset)
    return [Record(offset, NO_TIME, key, value) for offset, key, value in zip(offsets, keys, found, strict=False)]


class _Signed(NamedTuple):
    """The documents of a batch that the steps keep."""

    offsets: Integers
    hashes: Hashes


class _Miller:
    def __init__(self, task: MillTask, partitions: Sequence[int]) -> None:
        recipe = task.geneses[0].recipe
        self._reading, self._topic = task.reading, recipe.raw_topic
        stages = reopen_stages(recipe, task.tokenizer, task.engine, None, task.lists)
        each = {number: replace(stages, seen={}) for number in partitions}
        self.packers = {number: task.open_partition(task, own, number) for number, own in each.items()}
        if (deduplication := deduplication_of(recipe.dedup)) is not None:
            self._deduplication = deduplication
            self._seen = {number: own.seen for number, own in each.items()}
            # Documents before it are milled: they are signed for others' sake.
            self._begins = {number: packer.mill.next_offset for number, packer in self.packers.items()}
            self._signed = {number: deque[tuple[Sequence[SourceRecord], Looked]]() for number in partitions}
        keep_loaded()

    def scan(self, part: Part) -> ScannedPart:
        return scan(part, self._reading)

    def mill(self, batch: DocumentBatch) -> None:
        self.packers[batch.partition].take(records_of(batch))

    def sign(self, batch: DocumentBatch) -> _Signed:
        """Take documents through the steps, and hold those that are to be milled until the verdicts come."""
        mill, begin = self.packers[batch.partition].mill, self._begins[batch.partition]
        found = sign_records(mill, self._deduplication, records_of(batch), begin)
        self._signed[batch.partition].append((found.milled, found.looked))
        return _Signed(found.offsets, found.hashes)

    def judged(self, partition: int, offsets: Integers, verdicts: Verdicts) -> None:
        """Mill what was signed first of what waits; its mill knows what is told of duplicates."""
        told = rejections(verdicts, lambda number, offset: f"{self._topic}/{number}/{offset}")
        seen = self._seen[partition]
        seen.clear()
        seen.update((int(offset), one) for offset, one in zip(offsets.tolist(), told, strict=True) if one)
        records, looked = self._signed[partition].popleft()
        if records:
            self.packers[partition].take(records, looked)

    def flush(self, partition: int, offset: int) -> None:
        self.packers[partition].take([Record(offset, NO_TIME, None, None, (FLUSH_HEADER,))])

    def commit(self) -> Ends:
        with ThreadPoolExecutor(8) as threads:  # they wait for the disk
            list(threads.map(lambda packer: packer.commit(), self.packers.values()))
        return {number: packer.ends() for number, packer in self.packers.items()}


def _requests(connection: Connection) -> Iterator[tuple[int, Request]]:
    """Yield what comes through the pipe, scans first; a thread reads it, so that who sends never waits for long."""
    waiting = PriorityQueue[tuple[int, int, Request]]()

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                number, request = connection.recv()
                waiting.put((_SCANS if request[0] == "scan" else _OTHERS, number, request))
        waiting.put((_END, 0, ("", ())))

    threading.Thread(target=read, daemon=True).start()
    while (found := waiting.get())[0] != _END:
        yield found[1:]


def _work(connection: Connection) -> None:
    """Do what comes through the pipe, until it closes; the first message says which partitions are this process's."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process that started this one ends it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    allow_more_files()
    partitions, task = connection.recv()
    os.environ["RAYON_NUM_THREADS"] = str(task.threads)  # read by tokenizers when it first encodes
    try:
        miller = _Miller(task, partitions)
        connection.send((-1, {number: packer.mill.next_offset for number, packer in miller.packers.items()}))
        for number, (name, arguments) in _requests(connection):
            connection.send((number, getattr(miller, name)(*arguments)))
    except TokenMillError as error:
        connection.send((-1, error))
        connection.recv()  # nothing more is done; the pipe closes


class _Process:
    def __init__(self, connection: Connection, process: BaseProcess, partitions: Sequence[int]) -> None:
        self.connection, self.process, self.partitions = connection, process, partitions
        self.opened: Future[dict[int, int]] = Future()
        self.asked: dict[int, Future[Any]] = {}
        self.batches: deque[tuple[Future[Any], int]] = deque()
        self.scans = self.waiting_bytes = 0
        self.error: BaseException | None = None
        self.numbers, self.lock = itertools.count(), threading.Lock()

    def ask(self, name: str, *arguments: Any) -> "Future[Any]":
        """Have a method of `_Miller` called; return what will be its answer."""
        found: Future[Any] = Future()
        with self.lock:
            if self.error is not None:
                found.set_exception(self.error)
                return found
            number = next(self.numbers)
            self.asked[number] = found
            with suppress(OSError):  # it has ended, and the thread that reads says so
                self.connection.send((number, (name, arguments)))
        return found

    def run(self, task: MillTask) -> None:
        try:
            self.connection.send((self.partitions, task))
            while True:
                number, answer = self.connection.recv()
                if isinstance(answer, TokenMillError):
                    return self.fail(answer)
                found = self.opened if number < 0 else self.asked.pop(number)
                if not found.cancelled():
                    found.set_result(answer)
        except (EOFError, OSError):
            self.process.join()
            why = (
                f"the process that packed partitions {', '.join(map(str, self.partitions))} ended with code "
                f"{self.process.exitcode} (-9: killed, perhaps for its memory; else see above): the same command "
                "goes on; with fewer --processes it takes less memory"
            )
            self.fail(TokenMillError(why))

    def fail(self, error: BaseException) -> None:
        with self.lock:
            self.error = self.error or error
            waiting = [self.opened, *self.asked.values()]
            self.asked.clear()
        for one in waiting:
            if not one.done():
                one.set_exception(error)


class Millers:
    """The processes; a context manager that starts and ends them."""

    def __init__(self, task: MillTask, partitions: int, processes: int) -> None:
        count = max(1, min(processes, partitions))
        self._assigned = [list(range(number, partitions, count)) for number in range(count)]
        self._task = task
        self._processes: list[_Process] = []
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        started = self._stack.enter_context(side_processes(len(self._assigned), "pack", _work))
        for partitions, (connection, process) in zip(self._assigned, started.items(), strict=True):
            one = _Process(connection, process, partitions)
            self._threads.append(threading.Thread(target=one.run, args=(self._task,), name=process.name, daemon=True))
            self._threads[-1].start()
            self._processes.append(one)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._processes:
            one.process.kill()
        for thread in self._threads:  # they end with the processes, and must not find the pipes closed here before
            thread.join()
        self._stack.close()

    async def opened(self) -> dict[int, int]:
        """Return the offset that each partition wants next, once all are open; TokenMillError where one cannot be."""
        return await joined([one.opened for one in self._processes])

    def scan(self, part: Part) -> "Future[ScannedPart]":
        """Have a part scanned by the process that has least of that to do."""
        one = min(self._processes, key=lambda process: process.scans)
        one.scans += 1
        found = one.ask("scan", part)

        def done(_: object) -> None:
            one.scans -= 1

        found.add_done_callback(done)
        return found

    async def mill(self, batch: DocumentBatch, size: int) -> None:
        """Give a partition's process documents, of ``size`` bytes; waits while it has enough. Raises what it meets."""
        await self._give(batch.partition, size, "mill", batch)

    def sign(self, batch: DocumentBatch) -> "Future[_Signed]":
        """Have a partition's next documents signed; they are not milled before `judged`."""
        return self._of(batch.partition).ask("sign", batch)

    async def judged(self, partition: int, offsets: Integers, verdicts: Verdicts, size: int) -> None:
        """Have the documents milled that were signed first of those that wait, of ``size`` bytes. Waits as `mill`."""
        await self._give(partition, size, "judged", partition, offsets, verdicts)

    async def _give(self, partition: int, size: int, name: str, *arguments: Any) -> None:
        one = self._of(partition)
        while one.waiting_bytes and one.waiting_bytes + size > WAITING_BYTES:
            await self._milled(one)
        while one.batches and one.batches[0][0].done():
            await self._milled(one)
        one.batches.append((one.ask(name, *arguments), size))
        one.waiting_bytes += size

    async def _milled(self, one: _Process) -> None:
        found, size = one.batches.popleft()
        await asyncio.wrap_future(found)
        one.waiting_bytes -= size

    async def flush(self, partition: int, offset: int) -> None:
        """Fill the open blocks of a partition. Raises as `mill`."""
        await asyncio.wrap_future(self._of(partition).ask("flush", partition, offset))

    def commit(self) -> "list[Future[Ends]]":
        """Have all that was given made durable; each process answers with how far its partitions are then."""
        return [one.ask("commit") for one in self._processes]

    def _of(self, partition: int) -> _Process:
        return self._processes[partition % len(self._processes)]


async def joined(answers: Iterable["Future[dict[int, T]]"]) -> dict[int, T]:
    """Return what all processes answer, by partition."""
    found: dict[int, T] = {}
    for answer in answers:
        part: dict[int, T] = await asyncio.wrap_future(answer)
        found |= part
    return found


class _Part(NamedTuple):
    batch: DocumentBatch
    numbers: Integers
    size: int
    signed: "Future[_Signed]"


class Judging:
    """Judges documents in the order of their numbers, and gives them on to be milled.

    A round is what was dealt out to all partitions since the round before; while it is signed, that one is judged.
    """

    def __init__(
        self, millers: Millers, deduplication: Deduplication, directory: Path, number: int = 0, kept: int = 0
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

    async def deal(self, parts: Sequence[tuple[DocumentBatch, Sequence[int], int]]) -> None:
        """Have a round signed: batches, the numbers of their documents, and their bytes. Raises as `Millers.mill`."""
        sign = self._millers.sign
        self._rounds.append([_Part(one, np.array(numbers, np.int64), size, sign(one)) for one, numbers, size in parts])
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
        offsets = np.concatenate([one.offsets for _, one in signed])
        partitions = np.repeat([part.batch.partition for part, _ in signed], [len(one.offsets) for _, one in signed])
        places = np.column_stack([partitions, offsets]).astype(np.uint64)
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
