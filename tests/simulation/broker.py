"""The simulated broker: a raw partition, the token partitions of its chains, dead letters, and what is on its way."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.simulation.logs import Log, T, step
from tokenmill.app.milling.outcomes import Outcome
from tokenmill.documents import Record
from tokenmill.errors import MovedError
from tokenmill.wire.message import Message, decode_message, encode_header


@dataclass(frozen=True, slots=True)
class Stored:
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
            self.dead += [(Record(*_plain(o.record)), o.reason) for o in flight.letters]
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


def _plain(record: object) -> tuple[int, int, bytes | None, bytes | None]:
    return tuple(getattr(record, name) for name in ("offset", "timestamp", "key", "value"))


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
