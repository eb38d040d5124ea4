"""Repairing a store from the token topic or from another store; what is done to files is in `tokenmill.store`."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, FingerprintError, InputError, StoreError
from tokenmill.recipe import Recipe
from tokenmill.store import StreamInfo, layout, open_eras, partitions_in, read_stream
from tokenmill.store.layout import STREAM_FILE, TOKENIZER_FILE, is_packed, partition_directory, stream_directory
from tokenmill.store.store import read_start
from tokenmill.untrusted import MAX_TOKENIZER_BYTES, read_regular
from tokenmill.wire.chain import roll
from tokenmill.wire.message import Message

from ...kafka.clients import consumer, offsets, read_range
from ...kafka.control_topic import settled_stream, tokenizer_of
from ...kafka.token_topic import message_of, offset_before, readable, record_at
from ...settings import Settings
from .repairing import Donor, Given, Repaired, examine, link_aside, repair_partition, store_donor

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicDonor:
    """One token partition, as a `Donor`."""

    settings: Settings
    recipe: Recipe
    tokens: TopicPartition

    def __call__(self, first: int, end: int) -> list[Given]:
        """Return what the topic retains of the blocks ``[first, end)``, without messages that no reader takes."""
        return asyncio.run(self._read(first, end))

    async def _read(self, first: int, end: int) -> list[Given]:
        async with consumer(self.settings) as client:
            span = (await offsets(client, [self.tokens]))[self.tokens]
            low = span[0]
            try:
                oldest = await record_at(client, self.tokens, *span)
                if oldest is None or (span[0] and message_of(oldest, self.tokens).first >= end):
                    return []
                low = await offset_before(client, self.tokens, self.recipe.fingerprint, first, span)
            except DamagedError as error:  # another writer's message: what is wanted may be anywhere
                log.warning("reading the whole partition", reason=str(error))
            found = await self._collect(client, (low, span[1]), first, end)
            lacks = len({block.number for block in found}) < end - first
            if lacks and low > span[0]:  # written again, below what the search looked at
                found = await self._collect(client, span, first, end)
            return found

    async def _collect(self, client: AIOKafkaConsumer, span: tuple[int, int], first: int, end: int) -> list[Given]:
        found: list[Given] = []
        missing = set(range(first, end))
        async for record in read_range(client, self.tokens, *span):
            message = readable(record, self.recipe.fingerprint)
            blocks = () if message is None else self._blocks(message)
            wanted = [block for block in blocks if first <= block.number < end]
            found += wanted
            missing -= {block.number for block in wanted}
            if not missing:
                break
        return found

    def _blocks(self, message: Message) -> list[Given]:
        """Return the blocks of a message, if it agrees with itself; else none."""
        size = self.recipe.block_bytes
        if len(message.tokens) != message.count * size:
            return []
        *before, after = message.before, *roll(message.before, message.tokens, message.entries)
        numbers, places = itertools.count(message.first), range(0, len(message.tokens), size)
        tokens = (bytes(message.tokens[at : at + size]) for at in places)
        given = map(Given, numbers, tokens, message.entries, before)
        return list(given) if after == message.after else []


def described_in(store: Path, stream: str) -> tuple[StreamInfo, bytes | None]:
    """Return description and tokenizer as another store has them; raises DamagedError where they are damaged."""
    info = read_stream(store, stream).in_stores()
    path = stream_directory(store, stream) / TOKENIZER_FILE
    tokenizer = read_regular(path, most=MAX_TOKENIZER_BYTES) if path.exists() else None
    if tokenizer is not None and info.recipe.get("tokenizer_sha256") not in {None, sha256(tokenizer).hexdigest()}:
        raise DamagedError(f"{path} is not the tokenizer of its stream", "Give another store, or the token topic")
    return info, tokenizer


def rewrite_description(
    store: Path, stream: str, right: Callable[[], tuple[StreamInfo, bytes | None]]
) -> tuple[StreamInfo, list[str]]:
    """Return the description of a stream, and what was written again of it; damaged files are kept beside.

    ``right`` gives what both files must be. Raises FingerprintError where the store's stream of that name is another,
    and StoreError where the store lacks it.
    """
    directory = stream_directory(store, stream)
    if not directory.is_dir():
        raise StoreError(f"there is no {directory}: give the store's directory, and a stream that it holds")
    info, tokenizer = right()
    rewritten = []
    for name, content in ((STREAM_FILE, info.encode()), (TOKENIZER_FILE, tokenizer)):
        path = directory / name
        if content is None or (path.exists() and read_regular(path) == content):
            continue
        if name == STREAM_FILE:
            _require_damage(store, stream, info)
        if path.exists():
            link_aside(path)
        layout.put_file(path, content)
        rewritten.append(str(path))
    return info, rewritten


def _require_damage(store: Path, stream: str, info: StreamInfo) -> None:
    """Check that a description that differs is damaged, and not another stream's."""
    try:
        known = read_stream(store, stream)
    except (DamagedError, StoreError):
        return
    raise FingerprintError(
        f"{store} holds a stream {stream} made with other settings ({known.differences(info)}): give the brokers or "
        "the store of the same stream"
    )


class PartitionRepair(NamedTuple):
    """One partition."""

    stream: str
    partition: int
    segments: Sequence[Repaired]

    @property
    def lost(self) -> list[range]:
        """Blocks that nothing gives back; runs that touch are one."""
        runs: list[range] = []
        for run in (run for segment in self.segments for run in segment.lost):
            if runs and runs[-1].stop == run.start:
                runs[-1] = range(runs[-1].start, run.stop)
            else:
                runs.append(run)
        return runs

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        segments = [
            {**asdict(one), "lost": [[run.start, run.stop] for run in one.lost], "kept": list(map(str, one.kept))}
            for one in self.segments
        ]
        return {"stream": self.stream, "partition": self.partition, "segments": segments}


def repair_store(
    settings: Settings,
    stream: str,
    partitions: Sequence[int] = (),
    *,
    donor: Path | None = None,
    progress: Callable[[str, int, Repaired], None] = lambda *_: None,
) -> tuple[list[PartitionRepair], list[str]]:
    """Rebuild what is damaged or missing of a stream in the settings' store; return what, and which descriptions.

    All partitions of which the store has a directory, or those named. Blocks that the files do not hold come from the
    token topic, or from the store ``donor``; then no broker is needed, nor where the stream was packed. Each segment
    goes to ``progress``. Raises as `repair_partition`; and FingerprintError, StoreError, TopicError or BrokerError
    where store, donor or topics are not those of the stream.
    """
    store = layout.store_directory(settings.store)
    layout.require_no_bucket(store)
    if donor is not None:
        info, rewritten = rewrite_description(store, stream, lambda: described_in(donor, stream))
        donors: Callable[[int], Donor] = lambda partition: store_donor(donor, info, partition)  # noqa: E731
    elif is_packed(store, stream):
        info, rewritten, donors = read_stream(store, stream), [], lambda _: lambda *_: ()
    else:
        settled = asyncio.run(settled_stream(settings, stream))
        genesis = settled.genesis
        right = StreamInfo.from_genesis(genesis, genesis.segment_blocks), tokenizer_of(settled).content
        info, rewritten = rewrite_description(store, stream, lambda: right)
        recipe, topic = genesis.recipe, settled.stream.tokens_topic
        donors = lambda partition: TopicDonor(settings, recipe, TopicPartition(topic, partition))  # noqa: E731
    repairs = []
    for partition in _chosen(store, stream, partitions):
        directory = partition_directory(store, stream, partition)
        directory.mkdir(exist_ok=True)
        segments = []
        for repaired in repair_partition(directory, info, partition, donors(partition)):
            progress(stream, partition, repaired)
            segments.append(repaired)
        repairs.append(PartitionRepair(stream, partition, segments))
    return repairs, rewritten


def examine_store(store: Path, stream: str, partitions: Sequence[int] = ()) -> list[PartitionRepair]:
    """Return what is damaged of a stream, and change nothing; reads every byte, and asks no broker."""
    info = read_stream(store, stream)
    return [
        PartitionRepair(stream, number, examine(directory, info, number, read_start(directory, info, number)))
        for number in _chosen(store, stream, partitions)
        for directory in [partition_directory(store, stream, number)]
    ]


def _chosen(store: Path, stream: str, partitions: Iterable[int]) -> list[int]:
    there = partitions_in(store, stream)
    if is_packed(store, stream):  # the eras say which partitions there must be
        eras = open_eras(store, stream)
        named = eras.era(eras.eras - 1).ranges if eras.eras else ()
        there = sorted({*there, *(number for number, part in enumerate(named) if part.stop)})
    chosen = sorted(set(partitions)) or there
    for partition in chosen:
        if partition not in there:
            raise InputError(
                f"{store} holds nothing of partition {partition} of {stream} (partitions there: {there}): name one of "
                "these, or wait until it is begun"
            )
    return chosen
