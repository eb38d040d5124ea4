"""Which run a call of produce belongs to, what is noted of a run, and which of its documents are in the log.

Two calls belong to the same run if they name the same topic and paths, and all options that decide what is sent and in
which order. The notes of a run say when it began, where the topic ended then, what its sources were, and whether it is
done. They are on a compacted topic beside the raw topic (`produced_topic`): a consumer group would look as if it
lagged, and Kafka forgets groups. The run's own producer writes them, so a call that another one has replaced writes
nothing any more (`fenced_producer`). A note has a head, under the run's name; the sources come before it, in parts,
under the run's name, the time of its start, and a number.

A run numbers its documents from 0, in the order of `app.sources.reading_order`. The number, or the key, decides the
partition. They are sent in batches, and a batch is in the log as a whole or not at all; its last record carries the
mark. So the last mark of a run in a partition says: of this partition's documents, those up to ``number`` are here, or
were refused, and no other.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import xxhash
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tokenmill.errors import SourceError
from tokenmill.redaction import redacted
from tokenmill.untrusted import inflated, parse_json

from ...kafka.clients import consumer, offsets, read_partition, read_range, sending_to
from ...settings import Settings, produced_topic
from ...sources.file_sources import Reading
from ...sources.items import MEMORY_BYTES, Place
from ...sources.reading_order import LaneState, OrderState
from ...sources.source_changes import ORDER, KnownSource, utf8

MOST_BYTES: Final = 256 << 20
"""Largest note of sources that is read, decompressed: that of two million files."""
PART_BYTES: Final = 512 << 10
"""Bytes of one part of a note of sources; half of what the topic takes."""


def run_identity(topic: str, options: Mapping[str, object], paths: Sequence[str]) -> str:
    """Return the identity of a run, as its command names it: 16 hexadecimal digits, the same for the same command.

    It depends on no working directory. ``options`` are those that decide what is sent and in which order, as JSON
    types; ``paths`` as they were given, without passwords: a folder that has other files now is the same run.
    """
    named = [redacted(path) if "://" in path else str(Path(path).absolute()) for path in paths]
    command = [topic, named, dict(options)]
    try:
        serialized = orjson.dumps(command, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # a name has bytes that are no UTF-8, as surrogates: escapes are for them as well
        serialized = json.dumps(command, sort_keys=True).encode()
    return xxhash.xxh3_64_hexdigest(serialized)


def deciding_options(
    reading: Reading, split: str | None, shuffle: int, seed: int, sql: str | None = None
) -> dict[str, object]:
    """Return the options that decide what is sent and in which order, as JSON types."""
    # Only where they are given, so that runs which older versions began can continue.
    listed = reading.mapping is not None and reading.mapping.batch is not None
    given = {"delimiter": reading.delimiter, "encoding": reading.encoding, "map_lists": listed or None}
    given |= {"extract": reading.extract or None, "sql": sql, "escape": reading.escape}
    given |= {"quote": None if reading.quote == '"' else reading.quote, "separator": reading.separator}
    return {
        **{name: value for name, value in given.items() if value is not None},
        **({} if reading.unpack_memory == MEMORY_BYTES else {"unpack_memory": reading.unpack_memory}),
        "format": reading.choice,
        "map": None if reading.mapping is None else reading.mapping.name,
        "split": split,
        "shuffle": [shuffle, seed] if shuffle else None,
        **reading.shape.deciding(),
    }


class SentBefore(NamedTuple):
    """Counts of a run before a part of it: documents, refusals, and sources that could not be read to their end."""

    number: int = 0
    refused: int = 0
    broken: int = 0
    declined: int = 0
    """Those that the brokers refused: both numbered and refused."""


NOTHING_BEFORE: Final = SentBefore()


class RunEnd(NamedTuple):
    """The end of a part of a run: all of it is in the log."""

    numbers: dict[int, int]
    """By partition: number of the run's last document there; -1 where there is none."""
    ends: dict[int, int]
    after: SentBefore


class RunStart(NamedTuple):
    """The start of a part of a run: of its first one, or of what was new when ``--only-new`` asked for it."""

    started_ms: int
    """In Unix milliseconds: its marks carry this time."""
    offsets: dict[int, int]
    """By partition: its end offset then. Documents go to these partitions, though there may be more now."""
    sources: tuple[KnownSource, ...]
    before: SentBefore = NOTHING_BEFORE
    order: str = ORDER
    run_end: RunEnd | None = None
    """None while the part is not sent completely."""


def run_name(settings: Settings, run: str) -> str:
    """Return the name of a run on the brokers: its transactional id."""
    return f"{settings.group}.produce.{run}"


async def read_note(settings: Settings, topic: str, run: str) -> RunStart | None:
    """Return the last note of a run into a raw topic, or None; SourceError where parts of the note are missing."""
    name, notes = run.encode(), produced_topic(topic)
    found = await _noted(settings, notes, name)
    run_start = decode_start(name, found)
    if name in found and run_start is None:
        raise SourceError(
            f"{notes} does not hold all of what was noted of this run: is it compacted, and nothing else? "
            "--restart sends all documents again"
        )
    return run_start


async def write_note(
    client: AIOKafkaProducer, topic: str, run: str, run_start: RunStart, earlier: RunStart | None = None
) -> None:
    """Note that a part has begun; on return Kafka has the note, and will forget the sources of the earlier part.

    Raises ProducerFenced where another call has taken the run over.
    """
    for key, value in encode_start(run, run_start)[1].items():
        await _send(client, topic, key, value)
    await settle_note(client, topic, run, run_start)
    if earlier is not None and earlier.started_ms != run_start.started_ms:
        for key in encode_start(run, earlier)[1]:
            await _send(client, topic, key, None)


async def settle_note(client: AIOKafkaProducer, topic: str, run: str, run_start: RunStart) -> None:
    """Note that all of a part is in the log. Raises as `write_note` does."""
    await _send(client, topic, run.encode(), encode_start(run, run_start)[0])


async def _send(client: AIOKafkaProducer, topic: str, key: bytes, value: bytes | None) -> None:
    notes = produced_topic(topic)
    with sending_to(notes, "do without notes: --no-resume"):
        await client.send_and_wait(notes, value, key, 0)


async def produced_runs(settings: Settings, topic: str) -> dict[str, RunStart]:
    """Return the last note of each run into a raw topic, by run. Raises BrokerError where no broker answers."""
    found = await _noted(settings, produced_topic(topic))
    runs = {name: decode_start(name, found) for name in found if b"/" not in name}
    return {name.decode("utf-8", "replace"): run for name, run in runs.items() if run is not None}


async def _noted(settings: Settings, topic: str, run: bytes | None = None) -> dict[bytes, bytes]:
    """Return the last values on a topic of notes, of one run or of all, by key; none where there is no such topic."""
    found: dict[bytes, bytes] = {}
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        if topic not in await client.topics():
            return {}
        async for record in read_partition(client, TopicPartition(topic, 0)):
            if record.key is not None and run in (None, record.key.partition(b"/")[0]):
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = record.value
    return found


def encode_start(run: str, run_start: RunStart) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the head of a note, and its parts by key."""
    packed = zlib.compress(orjson.dumps([[utf8(seen.name), *seen[1:]] for seen in run_start.sources]), 1)
    pieces = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    end = run_start.run_end
    settled = None if end is None else [_listed(end.numbers), _listed(end.ends), _counts(end.after)]
    head = {
        "begun": run_start.started_ms,
        "order": run_start.order,
        "offsets": _listed(run_start.offsets),
        "before": _counts(run_start.before),
        "parts": len(pieces),
        "settled": settled,
    }
    return orjson.dumps(head), {_key(run, run_start.started_ms, number): piece for number, piece in enumerate(pieces)}


def decode_start(name: bytes, noted: Mapping[bytes, bytes]) -> RunStart | None:
    """Return the note of a run, by its name; None if it has none, or an incomplete one. ``noted`` is by key."""
    try:
        found = parse_json(noted[name])
        pieces = [noted[_key(name.decode(), found["begun"], number)] for number in range(found["parts"])]
        sources = tuple(map(_known, parse_json(inflated(b"".join(pieces), most=MOST_BYTES), most=MOST_BYTES)))
        run_end = None
        if found["settled"] is not None:
            numbers, ends, after = found["settled"]
            run_end = RunEnd(dict(enumerate(numbers)), dict(enumerate(ends)), SentBefore(*after))
            _require_numbers(*numbers, *ends, *after)
        offsets, before = dict(enumerate(found["offsets"])), SentBefore(*found["before"])
        _require_numbers(found["begun"], *offsets.values(), *before)
        return RunStart(found["begun"], offsets, sources, before, str(found["order"]), run_end)
    except (KeyError, TypeError, ValueError):
        return None


def _known(seen: list[Any]) -> KnownSource:
    known = KnownSource(*seen)
    _require_numbers(known.size, known.modified, known.lines, known.entry, known.byte)
    texts: tuple[object, ...] = (known.name, known.digest)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(seen)
    return known


def _require_numbers(*values: object) -> None:
    """Check what any client may have written; its users rely on this check."""
    if not all(isinstance(value, int) for value in values):
        raise TypeError(values)


def _counts(before: SentBefore) -> list[int]:
    return list(before if before.declined else before[:-1])  # as earlier versions read it


def _listed(by_partition: Mapping[int, int]) -> list[int]:
    return [by_partition[number] for number in range(len(by_partition))]


def _key(run: str, run_start: int, number: int) -> bytes:
    return f"{run}/{run_start}/{number}".encode()


MARK_HEADER: Final = "tokenmill.produce"
FIRST_TAIL: Final = 32
"""Records read at first from a partition's end: the last one has a mark, unless others wrote after the run."""


class RunCheckpoint(NamedTuple):
    """A place between two chunks from which a run can continue, and what came before it."""

    number: int
    """All documents with lower numbers are in the log, in all partitions, or refused by the brokers."""
    state: OrderState
    """Just before the document with this number."""
    refused: int = 0
    """Refusals before it; their dead letters, if wanted, are acknowledged."""
    broken: int = 0
    """How many of these are sources that could not be read to their end."""
    declined: int = 0
    """How many of these are documents that the brokers refused."""


class BatchMark(NamedTuple):
    """The mark of a batch."""

    run: str
    started_ms: int
    """When the part began, in Unix milliseconds: a run that is sent again on purpose has another one."""
    number: int
    """Of the document in the record that carries the mark."""
    checkpoint: RunCheckpoint


def encode_mark(mark: BatchMark) -> bytes:
    """Return the header's value: JSON, which people can read, and short."""
    number, state, *counts, declined = mark.checkpoint
    lanes = [[lane.file, lane.place.entry, lane.place.byte] for lane in state.lanes]
    counts += [declined] if declined else []  # earlier versions do not know it
    return orjson.dumps([mark.run, mark.started_ms, mark.number, number, state.turn, lanes, *counts])


def decode_mark(value: bytes) -> BatchMark | None:
    """Return the mark, or None if it is none: others may write headers of that name."""
    try:
        run, started_ms, number, behind, turn, lanes, refused, broken, *declined = orjson.loads(value)
        places = tuple(LaneState(_number(file), Place(_number(entry), _number(byte))) for file, entry, byte in lanes)
        counts = map(_number, (refused, broken, *declined))
        checkpoint = RunCheckpoint(_number(behind), OrderState(_number(turn), places), *counts)
        return BatchMark(str(run), _number(started_ms), _number(number), checkpoint)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


class RunPosition(NamedTuple):
    """What of a run is in the log."""

    checkpoint: RunCheckpoint
    sent: dict[int, int]
    """By partition: number of its last document that is in the log; those before it are there, too, or were refused."""

    @classmethod
    def nothing(cls, sources: int, partitions: int, before: SentBefore = NOTHING_BEFORE) -> "RunPosition":
        """Return the position of a new run, or of a new part: nothing of it is in the log."""
        checkpoint = RunCheckpoint(before.number, OrderState.start(sources), *before[1:])
        return cls(checkpoint, dict.fromkeys(range(partitions), before.number - 1))


async def partition_ends(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    """Return the end of each partition, what is not committed yet included."""
    names = [TopicPartition(topic, number) for number in range(partitions)]
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        found = await offsets(client, names)
    return {name.partition: end for name, (_, end) in found.items()}


async def read_position(settings: Settings, topic: str, run: str, run_start: RunStart, sources: int) -> RunPosition:
    """Return the position of a run that no other producer continues; SourceError where the topic lost what it wrote."""
    position = RunPosition.nothing(sources, len(run_start.offsets), run_start.before)
    marks: dict[int, BatchMark] = {}
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number in run_start.offsets:
            if (mark := await _last_mark(client, TopicPartition(topic, number), run, run_start)) is not None:
                marks[number] = mark
    if not marks:
        return position
    furthest = max((mark.checkpoint for mark in marks.values()), key=lambda checkpoint: checkpoint.number)
    sent = {number: marks[number].number if number in marks else position.sent[number] for number in run_start.offsets}
    return RunPosition(furthest, sent)


async def is_complete(settings: Settings, topic: str, run: str, run_start: RunStart, run_end: RunEnd) -> bool:
    """Return whether all of a part that was noted as complete is there, or removed by retention: no end was lost."""
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number in run_start.offsets:
            partition, last, upper = TopicPartition(topic, number), run_end.numbers[number], run_end.ends[number]
            first, end = (await offsets(client, [partition]))[partition]
            if end < upper:
                return False
            if last < run_start.before.number or first >= upper:
                continue
            try:
                mark = await _last_mark(client, partition, run, run_start, upper)
            except RetentionError:
                continue
            if mark is None or mark.number < last:
                return False
    return True


class RetentionError(SourceError):
    """A partition no longer holds what a run wrote there, if it wrote anything."""


async def _last_mark(
    client: AIOKafkaConsumer, partition: TopicPartition, run: str, run_start: RunStart, upper: int | None = None
) -> BatchMark | None:
    """Look for the run's last mark from the end, or ``upper``, back to where the partition ended when the run began."""
    first, end = (await offsets(client, [partition]))[partition]
    start = run_start.offsets[partition.partition]
    advice = "start again with --restart, which sends all documents again"
    if end < start:
        raise SourceError(f"{partition.topic} was created again since this run began: {advice}")
    size = FIRST_TAIL
    upper = end if upper is None else min(end, upper)
    while upper > max(first, start):
        lower = max(first, start, upper - size)
        found = None
        async for record in read_range(client, partition, lower, upper):
            for name, value in record.headers:
                mark = decode_mark(value or b"") if name == MARK_HEADER else None
                if mark is not None and (mark.run, mark.started_ms) == (run, run_start.started_ms):
                    found = mark
        if found is not None:
            return found
        upper, size = lower, size * 8  # others have written after the run
    if first > start:
        raise RetentionError(
            f"{partition.topic}[{partition.partition}] no longer holds what this run wrote: its retention removed it, "
            f"so it cannot be known which documents it had; {advice}"
        )
    return None


async def has_marks(settings: Settings, topic: str, ends: Mapping[int, int], run: str) -> bool:
    """Return whether marks of a run, whenever it began, are among the last records of a partition."""
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, end in ends.items():
            partition = TopicPartition(topic, number)
            first = (await offsets(client, [partition]))[partition][0]
            async for record in read_range(client, partition, max(first, end - FIRST_TAIL), end):
                marks = (decode_mark(value or b"") for name, value in record.headers if name == MARK_HEADER)
                if any(mark is not None and mark.run == run for mark in marks):
                    return True
    return False
