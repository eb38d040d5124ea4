"""The ledger: what became of every record, as the last messages on the token topics say; nothing else is read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.wire.message import Message
from tokenmill.wire.pieces import split_references
from tokenmill.wire.totals import Totals

from ...funnel import Retention
from ...kafka.clients import consumer, offsets
from ...kafka.control_topic import Settled, require_topic, settled_streams
from ...kafka.token_topic import furthest, last_messages, readable, record_at
from ...settings import Settings


class Pace(NamedTuple):
    """What was published between two messages of token topics, by the brokers' clocks."""

    first: int
    """When the first was written, in milliseconds since 1970."""
    last: int
    tokens: int
    """Tokens of documents that are counted by the last message and were not by the first."""

    @property
    def seconds(self) -> float:
        """The time between."""
        return (self.last - self.first) / 1000


NO_PACE: Final = Pace(0, 0, 0)
"""Where that is not known."""


@dataclass(frozen=True, slots=True)
class ChainLedger:
    """The account of one chain up to its published cursor, or the sum of several."""

    stream: str
    raw_topic: str
    partition: int | None
    """None in a sum."""
    offset: int | None
    """The source offset up to which all records are counted; None in a sum of different ones."""
    taken: int = 0
    """Tokens in blocks of the documents at the cursors, which are counted when all of their tokens are."""
    blocks: int = 0
    block_tokens: int = 0
    """Tokens in these blocks, padding included."""
    open_tokens: int = 0
    """Tokens that wait in open blocks, as the last carries say, or the last messages of packings that refer to them."""
    totals: Totals = field(default_factory=Totals)
    pace: Pace = NO_PACE
    last_record_ms: int | None = None
    """Timestamp of the last raw record that is counted, in milliseconds since 1970; None where it has none."""

    @property
    def retention(self) -> Retention:
        """The same for people: what is kept of the documents, and what dropped the rest."""
        return Retention(self.totals, self.padding, self.pace.seconds, self.pace.tokens, self.blocks)

    @property
    def padding(self) -> int:
        """Tokens that no document wrote: flushes, and packings that close blocks, filled blocks with them."""
        return self.block_tokens + self.open_tokens - self.totals.tokens - self.taken

    @property
    def balanced(self) -> bool:
        """Whether every record is in one column, and every token is a document's, a flush's or the packing's."""
        flushed = self.padding - self.totals.packing["padding"]
        return self.totals.balanced and (flushed == 0 or (flushed > 0 and self.totals.flushes > 0))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        names = ("stream", "raw_topic", "partition", "offset", "blocks", "block_tokens", "open_tokens", "taken")
        values = {name: getattr(self, name) for name in names}
        known = {"padding": self.padding, "balanced": self.balanced, "retention": self.retention.to_dict()}
        return {**values, **known, **self.totals.to_dict()}


@dataclass(frozen=True, slots=True)
class RawPartitionAccount:
    """All streams of one raw partition: a tombstone, a flush and a record of no split count in each, others in one."""

    raw_topic: str
    partition: int
    offsets: dict[str, int]
    """Source offset of each stream. Sums over streams balance only where all are at one offset."""
    records: int | None
    """Records below that offset; None where there is no such offset."""
    owned: int = 0
    """Of these, the kept, filtered and dead-lettered ones of all streams together."""
    shared: int = 0
    """Tombstones and flushes."""

    @property
    def unowned(self) -> int | None:
        """Records of no stream's split; None where the streams are at different offsets."""
        return None if self.records is None else self.records - self.owned - self.shared

    @property
    def balanced(self) -> bool:
        """Whether the streams do not claim more than there is, as far as that can be told."""
        return self.unowned is None or self.unowned >= 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**asdict(self), "unowned": self.unowned, "balanced": self.balanced}


@dataclass(frozen=True, slots=True)
class RecordLedger:
    """The accounts of all chains, by stream and partition."""

    chains: Sequence[ChainLedger]
    raw_partitions: Sequence[RawPartitionAccount]

    @property
    def streams(self) -> list[ChainLedger]:
        """The sum of each stream."""
        names = dict.fromkeys(chain.stream for chain in self.chains)
        return [added(name, [chain for chain in self.chains if chain.stream == name]) for name in names]

    @property
    def in_all(self) -> ChainLedger | None:
        """The sum of all streams; None where there are not several."""
        return added("all streams", self.chains) if len({chain.stream for chain in self.chains}) > 1 else None

    @property
    def empty(self) -> bool:
        """Whether no record is in any account yet."""
        return not any(chain.totals.records or chain.taken for chain in self.chains)

    @property
    def balanced(self) -> bool:
        """Whether all accounts are."""
        return all(chain.balanced for chain in self.chains) and all(raw.balanced for raw in self.raw_partitions)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "balanced": self.balanced,
            "chains": [chain.to_dict() for chain in self.chains],
            "streams": [stream.to_dict() for stream in self.streams],
            "in_all": self.in_all.to_dict() if self.in_all is not None else None,
            "raw_partitions": [raw.to_dict() for raw in self.raw_partitions],
        }


async def read_ledger(settings: Settings, streams: Sequence[str] = ()) -> RecordLedger:
    """Return the ledger of ``streams`` or all, read one after the other: of different moments of a running service."""
    settled = await settled_streams(settings, streams)
    chains: list[ChainLedger] = []
    async with consumer(settings) as client:
        for one in settled:
            for partition in range(await require_topic(client, one.stream.tokens_topic)):
                tokens = TopicPartition(one.stream.tokens_topic, partition)
                head = furthest(await last_messages(client, tokens, one))
                chain = account(one, partition, one.genesis.start(partition), head)
                chains.append(chain if head is None else replace(chain, pace=await _pace(client, tokens, head)))
    return RecordLedger(chains, raw_partition_accounts(settled, chains))


async def _pace(client: AIOKafkaConsumer, tokens: TopicPartition, head: Message) -> Pace:
    start, end = (await offsets(client, [tokens]))[tokens]
    first, last = [await record_at(client, tokens, at, end) for at in (start, end - 1)]
    message = readable(first) if first is not None else None
    if first is None or last is None or message is None:
        return NO_PACE
    return Pace(first.timestamp, last.timestamp, max(0, head.totals.tokens - message.totals.tokens))


def account(settled: Settled, partition: int, start: int, head: Message | None) -> ChainLedger:
    """Return the account that a chain's furthest message holds; without one the chain begins at offset ``start``."""
    chain, recipe = ChainLedger(settled.stream.name, settled.stream.raw_topic, partition, start), settled.genesis.recipe
    if head is None:
        return chain
    cursor, blocks = head.cursor, head.cursor.block
    in_open = split_references(head.references).tokens or len(head.open_tokens) // recipe.token_dtype.itemsize
    last = cursor.last_timestamp if cursor.last_timestamp >= 0 else None
    chain = replace(chain, offset=cursor.next_offset, taken=cursor.taken, totals=head.totals, last_record_ms=last)
    return replace(chain, blocks=blocks, block_tokens=blocks * recipe.block_tokens, open_tokens=in_open)


def added(name: str, chains: Sequence[ChainLedger]) -> ChainLedger:
    """Return the sum of accounts."""
    counts = [(chain.taken, chain.blocks, chain.block_tokens, chain.open_tokens) for chain in chains]
    taken, blocks, block_tokens, open_tokens = map(sum, zip(*counts, strict=True))
    paces = [chain.pace for chain in chains if chain.pace != NO_PACE] or [NO_PACE]
    pace = Pace(min(p.first for p in paces), max(p.last for p in paces), sum(p.tokens for p in paces))
    topic, totals = chains[0].raw_topic, sum((chain.totals for chain in chains), Totals())
    return ChainLedger(name, topic, None, None, taken, blocks, block_tokens, open_tokens, totals, pace)


def raw_partition_accounts(settled: Sequence[Settled], chains: Sequence[ChainLedger]) -> list[RawPartitionAccount]:
    """Return how the streams that divide one raw topic add up, for each of its partitions."""
    groups: dict[tuple[bytes, str, str, int], list[ChainLedger]] = {}
    by_name = {one.stream.name: one for one in settled}
    for chain in chains:
        own = by_name[chain.stream]
        # With another suffix the same division is made once more: each record is in one split of each.
        place = (own.genesis.recipe.division, own.stream.suffix, chain.raw_topic, chain.partition or 0)
        groups.setdefault(place, []).append(chain)
    return [_raw_partition_account(group) for group in groups.values() if len(group) > 1]


def _raw_partition_account(chains: Sequence[ChainLedger]) -> RawPartitionAccount:
    first = chains[0]
    offsets = {chain.stream: chain.offset or 0 for chain in chains}
    raw = RawPartitionAccount(first.raw_topic, first.partition or 0, offsets, None)
    same = {(chain.offset, chain.totals.records) for chain in chains}
    if len(same) > 1 or any(chain.taken for chain in chains):
        return raw
    owned = sum(c.totals.kept + c.totals.filtered.total() + c.totals.dead_lettered.total() for c in chains)
    shared = first.totals.tombstones + first.totals.flushes
    return replace(raw, records=first.totals.records, owned=owned, shared=shared)
