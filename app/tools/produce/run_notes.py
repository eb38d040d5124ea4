"""Which run a call of produce belongs to, and what is noted of a run.

Two calls belong to the same run if they name the same topic and paths, and all options that decide what is sent and in
which order. The notes of a run say when it began, where the topic ended then, what its sources were, and whether it is
done. They are on a compacted topic beside the raw topic (`produced_topic`): a consumer group would look as if it
lagged, and Kafka forgets groups. The run's own producer writes them, so a call that another one has replaced writes
nothing any more (`fenced_producer`). A note has a head, under the run's name. The sources come before it, in parts,
under the run's name, the time of its start, and a number: where there is a head, all of its parts are there.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import xxhash
from aiokafka import AIOKafkaProducer, TopicPartition

from tokenmill.errors import SourceError

from ...kafka.clients import consumer, offsets, read_range
from ...settings import Settings, produced_topic
from .reading_order import READERS
from .source_changes import Seen
from .sources import CHUNK_BYTES, CHUNK_ENTRIES, CUT, Reading


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as its command names it."""

    run: str
    """16 hexadecimal digits: the same for the same command."""

    @classmethod
    def of(cls, topic: str, options: Mapping[str, object], paths: Sequence[str]) -> "Identity":
        """Return the run's identity; it does not depend on the working directory.

        ``options`` are those that decide what is sent and in which order, as JSON types; ``paths`` as somebody gave
        them: that a folder has other files now must not make another run of it, but be noticed.
        """
        named = [path if "://" in path else str(Path(path).absolute()) for path in paths]
        return cls(xxhash.xxh3_64_hexdigest(_serialized([topic, named, dict(options)])))


def deciding(reading: Reading, split: str | None, shuffle: int, seed: int) -> dict[str, object]:
    """Return the options that decide what is sent and in which order, as JSON types."""
    shape = reading.shape
    # Only where they are given: what older versions began goes on.
    listed = reading.mapping is not None and reading.mapping.batch is not None
    given = {"delimiter": reading.delimiter, "encoding": reading.encoding, "map_lists": listed or None}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "format": reading.choice,
        "map": None if reading.mapping is None else reading.mapping.name,
        "split": split,
        "shuffle": [shuffle, seed] if shuffle else None,
        **shape.deciding(),
    }


def _serialized(command: list[object]) -> bytes:
    """Return the same bytes for the same command; names of files may hold bytes that are no UTF-8, as surrogates."""
    try:
        return orjson.dumps(command, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(command, sort_keys=True).encode()  # with escapes for what is not ASCII, surrogates included


PART_BYTES: Final = 512 << 10
"""Of a note of sources; half of what the topic takes."""
ORDER: Final = f"{CHUNK_BYTES} {CHUNK_ENTRIES} {CUT} {READERS}"
"""How documents are ordered: a version that cuts or deals otherwise must not go on where another one was."""


class Before(NamedTuple):
    """What came before this part of a run."""

    number: int = 0
    """Documents."""
    refused: int = 0
    broken: int = 0


NOTHING: Final = Before()
"""Before the first part."""


class Settled(NamedTuple):
    """That all of a part is in the log."""

    numbers: dict[int, int]
    """By partition: the last document of the run there; -1 where there is none."""
    ends: dict[int, int]
    """Where the partitions ended then."""
    after: Before
    """What came before the next part."""


class Begun(NamedTuple):
    """A part of a run: the first one, or what was new when somebody looked again."""

    milliseconds: int
    """When it began, in Unix time: its marks are told by it."""
    offsets: dict[int, int]
    """The end of each partition then; its documents go to these partitions, though there may be more by now."""
    sources: tuple[Seen, ...]
    """All that the run knew then."""
    before: Before = NOTHING
    order: str = ORDER
    settled: Settled | None = None
    """None while somebody sends, or was interrupted."""


def run_name(settings: Settings, run: str) -> str:
    """Return the run's name on the brokers, its transactional id."""
    return f"{settings.group}.produce.{run}"


class Register:
    """The notes of one run."""

    def __init__(self, settings: Settings, topic: str, run: str) -> None:
        """Take those of a run over a raw topic."""
        self._settings = settings
        self._topic = produced_topic(topic)
        self._run = run

    async def read(self) -> Begun | None:
        """Return what was noted last, None if nothing was.

        Raises:
            SourceError: parts of it are not there.
            BrokerError: no broker answers.

        """
        partition = TopicPartition(self._topic, 0)
        name = self._run.encode()
        found: dict[bytes, bytes | None] = {}
        async with consumer(self._settings, isolation_level="read_uncommitted") as client:
            span = (await offsets(client, [partition]))[partition]
            async for record in read_range(client, partition, *span):
                if record.key is not None and record.key.partition(b"/")[0] == name:
                    found[record.key] = record.value
        head = found.get(name)
        if head is None:
            return None
        begun = decode_start(head, {key: value for key, value in found.items() if value is not None and key != name})
        if begun is None:
            raise SourceError(
                f"{self._topic} does not hold all of what was noted of this run: is it compacted, and nothing else? "
                "--restart sends all documents again"
            )
        return begun

    async def write(self, client: AIOKafkaProducer, begun: Begun, earlier: Begun | None = None) -> None:
        """Note that a part has begun; on return Kafka has it, and forgets the sources of the earlier part.

        Raises:
            ProducerFenced: another call has taken over.

        """
        head, parts = encode_start(self._run, begun)
        for key, value in parts.items():
            await self._send(client, key, value)
        await self._send(client, self._run.encode(), head)
        if earlier is not None and earlier.milliseconds != begun.milliseconds:
            for key in encode_start(self._run, earlier)[1]:
                await self._send(client, key, None)

    async def settle(self, client: AIOKafkaProducer, begun: Begun) -> None:
        """Note that all of a part is in the log. Raises as `write` does."""
        await self._send(client, self._run.encode(), encode_start(self._run, begun)[0])

    async def _send(self, client: AIOKafkaProducer, key: bytes, value: bytes | None) -> None:
        await client.send_and_wait(self._topic, value, key, 0)


def encode_start(run: str, begun: Begun) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a note's head, and its parts by key."""
    packed = zlib.compress(orjson.dumps([_plain(seen) for seen in begun.sources]), 1)
    pieces = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    settled = begun.settled
    head = {
        "begun": begun.milliseconds,
        "order": begun.order,
        "offsets": _listed(begun.offsets),
        "before": list(begun.before),
        "parts": len(pieces),
        "settled": None if settled is None else [_listed(settled.numbers), _listed(settled.ends), list(settled.after)],
    }
    return orjson.dumps(head), {_key(run, begun.milliseconds, number): piece for number, piece in enumerate(pieces)}


def decode_start(head: bytes, parts: Mapping[bytes, bytes]) -> Begun | None:
    """Return the note, None if it is none, or not whole; ``parts`` by key, those of other notes among them."""
    try:
        found = orjson.loads(head)
        run = next(iter(parts)).partition(b"/")[0].decode()
        pieces = [parts[_key(run, found["begun"], number)] for number in range(found["parts"])]
        sources = tuple(Seen(*seen) for seen in orjson.loads(zlib.decompress(b"".join(pieces))))
        settled = None
        if found["settled"] is not None:
            numbers, ends, after = found["settled"]
            settled = Settled(dict(enumerate(numbers)), dict(enumerate(ends)), Before(*after))
        offsets = dict(enumerate(found["offsets"]))
        return Begun(found["begun"], offsets, sources, Before(*found["before"]), found["order"], settled)
    except (orjson.JSONDecodeError, zlib.error, KeyError, StopIteration, TypeError, ValueError):
        return None


def _plain(seen: Seen) -> list[Any]:
    return [seen.name.encode("utf-8", "replace").decode(), *seen[1:]]


def _listed(by_partition: Mapping[int, int]) -> list[int]:
    return [by_partition[number] for number in range(len(by_partition))]


def _key(run: str, begun: int, number: int) -> bytes:
    return f"{run}/{begun}/{number}".encode()
