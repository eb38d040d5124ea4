"""A broker of lists, whose logs expire, lose their ends and are made anew; its records, and what is on its way."""

import types
from collections import Counter
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from tests.mills import PARTITION, RECIPE, Source, make_source
from tokenmill.app.milling.outcomes import Outcome
from tokenmill.documents import FLUSH_HEADER, Record
from tokenmill.errors import MovedError
from tokenmill.recipe import Genesis, Recipe
from tokenmill.wire.message import Message, decode_message, encode_header

T = TypeVar("T")


@types.coroutine
def step(what: str = "works") -> Generator[str, None, None]:
    """Let the others have their turn; ``what`` tells the scheduler whether there was anything to do."""
    yield what


class Log(Generic[T]):
    """One partition: its committed records, by offset."""

    def __init__(self) -> None:
        self.first = 0
        self.end = 0
        self.leader = 0
        """Counts the changes of leader: a log cannot lose anything without one."""
        self.entries: dict[int, T] = {}
        self.truth: dict[int, T] = {}
        """The entries, and those that retention removed: what finally stands, for the judge alone."""

    def append(self, entry: T, gap: int = 0) -> int:
        """Put an entry at the end, after ``gap`` offsets that hold none; return its offset."""
        offset = self.end + gap
        self.entries[offset] = self.truth[offset] = entry
        self.end = offset + 1
        return offset

    def skip(self, gap: int) -> None:
        """Let offsets pass that hold no record (transaction markers, aborted records)."""
        self.end += gap

    def lose_tail(self, cut: int) -> None:
        """Forget all that stands at or above ``cut``; the next entry gets an offset that was taken before."""
        self.end = min(self.end, max(cut, self.first))
        for offset in [offset for offset in self.truth if offset >= self.end]:
            self.truth.pop(offset)
            self.entries.pop(offset, None)
        self.leader += 1

    def retain_from(self, first: int) -> None:
        self.first = max(self.first, min(first, self.end))
        for offset in [offset for offset in self.entries if offset < self.first]:
            del self.entries[offset]

    def recreate(self) -> None:
        leader = self.leader + 1
        self.__init__()  # type: ignore[misc] # it is a new log in all but its name
        self.leader = leader

    def read(self, start: int, end: int) -> list[tuple[int, T]]:
        if start < end and (start < self.first or end > self.end):
            raise MovedError(f"the log holds {self.first} to {self.end}, wanted are {start} to {end}")
        return [(offset, self.entries[offset]) for offset in range(start, end) if offset in self.entries]


FLUSH = 2
"""The kind of a flush, among those of `make_record`."""
SPLITS = {1: (("train", 1),), 2: (("train", 1), ("validation", 1))}


class Scene(NamedTuple):
    """The chains of one raw partition: their stages, their geneses, and how they are milled."""

    source: Source
    geneses: tuple[Genesis, ...]


@cache
def make_scene(splits: int, block_tokens: int, start: int, fit: tuple[int, int] | None = None) -> Scene:
    """Return the scene of so many splits, each with its genesis, which begins at offset ``start``.

    With ``fit``, that packing with so many open blocks, and pieces so many offsets behind.
    """
    recipe = replace(RECIPE, block_tokens=block_tokens)
    if fit is not None:
        parameters = {"open_blocks": fit[0], "max_age_offsets": fit[1]}
        recipe = replace(recipe, packing="fit", packing_parameters=parameters)
    return scene_of(recipe, splits, start)


def scene_of(recipe: Recipe, splits: int, start: int) -> Scene:
    recipe = replace(recipe, shards=splits, splits=SPLITS[splits], max_text_bytes=60)
    source = make_source(recipe, start=start)
    starts = (0,) * PARTITION + (start,)
    return Scene(source, tuple(Genesis(each.split, each, starts, 1000) for each in source.recipes))


def make_record(offset: int, number: int) -> Record:
    """Return the record that ``number`` names: a document mostly, sometimes one of the other outcomes.

    The timestamp is the number's own, so that a record that was lost is not written again by chance.
    """
    kind, size = number % 16, (number // 16) % 23
    others = {0: b"\xff no text", 1: None, FLUSH: None, 3: b"x" * 61, 4: b" "}
    value = others.get(kind, bytes(97 + (number // 7 + at) % 26 for at in range(size + 1)))
    return Record(offset, number, None, value, (FLUSH_HEADER,) if kind == FLUSH else ())


class Stored(NamedTuple):
    header: bytes
    value: bytes
    producer: int
    sequence: int
    sent: Message
    """As its sender had it, for the judge."""

    def message(self) -> Message:
        return decode_message(self.header, self.value)


@dataclass(slots=True, eq=False)
class Flight:
    """Something that was sent, and of which its sender does not know yet."""

    split: str | None
    """The chain of a message; None: dead letters."""
    stored: Stored | None = None
    letters: Sequence[Outcome] = ()
    state: Literal["flying", "acknowledged", "refused"] = "flying"
    offset: int = -1
    leader: int = -1
    """Which leader acknowledged it."""


@dataclass(slots=True)
class Broker:
    """Everything that survives a worker."""

    raw: Log[Record] = field(default_factory=Log)
    tokens: dict[str, Log[Stored]] = field(default_factory=dict)
    dead: list[tuple[Record, str]] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    landed: dict[str, list[Message]] = field(default_factory=dict)
    """All messages that ever stood on a token partition."""
    counts: Counter[str] = field(default_factory=Counter)

    def send(self, flight: Flight) -> Flight:
        self.flights.append(flight)
        return flight

    def land(self, flight: Flight, *, told: bool = True) -> bool:
        """Let it arrive, unless the broker refuses it; ``told``: its sender hears of it. Returns whether it stands."""
        self.flights.remove(flight)
        if flight.split is None:
            for letter in flight.letters:
                record: Any = letter.record
                self.dead.append((Record(record.offset, record.timestamp, record.key, record.value), letter.reason))
        elif not self._append(flight.split, flight):
            flight.state = "refused"
            return False
        flight.state = "acknowledged" if told else "refused"
        return True

    def refuse(self, flight: Flight) -> None:
        self.flights.remove(flight)
        flight.state = "refused"

    def _append(self, split: str, flight: Flight) -> bool:
        """Append as an idempotent producer's broker does: one without state for a producer accepts any sequence."""
        stored, log = flight.stored, self.tokens[split]
        assert stored is not None
        known = [entry.sequence for entry in log.entries.values() if entry.producer == stored.producer]
        if known and stored.sequence != max(known) + 1:
            self.counts["refused: out of sequence"] += 1
            return False
        flight.offset, flight.leader = log.append(stored), log.leader
        self.landed[split].append(stored.sent)
        return True


def stored(message: Message, producer: int, sequence: int) -> Stored:
    return Stored(encode_header(message), bytes(message.tokens), producer, sequence, message)


class SimulatedLogs:
    """The logs of one chain, read step by step (`tokenmill.reading.ChainLogs`)."""

    def __init__(self, broker: Broker, split: str) -> None:
        self.tokens = f"tokens.{split}[0]"
        self.source = "raw[0]"
        self.seen: list[Message] = []
        """All messages that stood there when the bounds were asked for, for the judge."""
        self.source_first = 0
        self.skipped_check = True
        self._broker = broker
        self._log = broker.tokens[split]

    async def _read(self, log: Log[T], start: int, end: int) -> list[tuple[int, T]]:
        await step()
        try:
            return log.read(start, end)
        except MovedError:
            self._broker.counts["log moved while read"] += 1
            raise

    async def token_bounds(self) -> tuple[int, int]:
        await step()
        self.seen = [entry.sent for entry in self._log.entries.values()]
        self.skipped_check = True
        return self._log.first, self._log.end

    async def source_bounds(self) -> tuple[int, int]:
        await step()
        self.source_first = self._broker.raw.first
        return self._broker.raw.first, self._broker.raw.end

    async def messages(self, start: int, end: int) -> AsyncIterator[Message]:
        for low in range(start, end, 4):
            for _, entry in await self._read(self._log, low, min(end, low + 4)):
                yield entry.message()

    async def records(self, start: int, end: int) -> AsyncIterator[list[Record]]:
        for low in range(start, end, 4):
            found = await self._read(self._broker.raw, low, min(end, low + 4))
            self._broker.counts["records read again"] += len(found)
            yield [record for _, record in found]

    async def record(self, offset: int) -> Record | None:
        self.skipped_check = False
        found = await self._read(self._broker.raw, offset, offset + 1)
        return found[0][1] if found else None
