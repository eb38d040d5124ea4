"""Skipping, ignoring, resending, repairing on brokers in memory: what is written, in which order, and what is not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tests.app.tools.verify.memory_stream import joined
from tokenmill.app.kafka.control_log import IGNORE_KEY, SKIP_KEY, SKIP_REQUEST_KEY, skip_request_record
from tokenmill.app.kafka.control_topic import read_on
from tokenmill.app.kafka.dead_letters import NOTE, Place, RecordPlace, SourcePlace, encode_dead_letter
from tokenmill.app.mill import topic_changes
from tokenmill.app.mill.topic_changes import SkipList
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools import failed_records, repair
from tokenmill.app.tools.failed_records import (
    RESENT,
    ResendOutcome,
    ResendRequest,
    count_dead_letters,
    ignore,
    resend,
    skip,
)
from tokenmill.app.tools.repair import Given, TopicDonor, described_in, rewrite_description
from tokenmill.errors import BrokerError, DamagedError, FingerprintError, InputError
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.chain import NO_RECORD, Cursor, roll

RAW = "raw-text"


class World:
    """Brokers in memory with a raw topic of 20 records, and streams made of it; all that is written is noted."""

    def __init__(self, directory: Path) -> None:
        self.kafka = MemoryKafka()
        self.settings = Settings(
            tokenizer="bytes", sequence_length=3, segment_blocks=4, splits={"all": 1000}, store=directory / "store"
        )
        self.streams: list[MemoryStream] = []
        self.written: list[tuple[str, Any]] = []
        self.fails_at: int | None = None
        """Of the writes to control topics, the one that fails; `sending_fails_at`: of the records that are sent."""
        self.sent: list[str] = []
        self.sending_fails_at: int | None = None
        for number in range(20):
            self.kafka.append(RAW, 0, f"{number}".encode())

    def stream(self, suffix: str = "", blocks: int = 8, **changes: Any) -> MemoryStream:
        """Settle a stream of one partition."""
        settings = self.settings.model_copy(update={"stream_suffix": suffix, **changes})
        self.streams.append(MemoryStream(self.kafka, settings, [blocks]))
        return self.streams[-1]

    async def settled(self, *_: Any) -> Any:
        """Return all streams as brokers tell them."""
        return [stream.settled for stream in self.streams]

    async def one(self, _settings: Settings, name: str) -> Any:
        """Return one stream."""
        return next(stream.settled for stream in self.streams if stream.stream.name == name)

    async def write(self, _settings: Settings, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Append to a control topic."""
        if self.fails_at == len(self.written):
            raise BrokerError
        for key, value in records:
            self.written.append((topic, key))
            self.kafka.append(topic, 0, value, key=key)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return a topic's partitions, as a producer does."""
        return {tp.partition for tp in self.kafka.logs if tp.topic == topic}

    async def send_and_wait(self, topic: str, value: bytes | None, key: Any, partition: int, *, headers: Any) -> None:
        """Append a record, as a producer does."""
        if self.sending_fails_at == len(self.sent):
            raise BrokerError
        self.sent.append(topic)
        self.kafka.append(topic, partition, value, key=key, headers=headers)
        await asyncio.sleep(0)  # others may come in between, as they do while a broker acknowledges

    @asynccontextmanager
    async def producer(self, _settings: Settings) -> AsyncIterator["World"]:
        """Give this as the producer."""
        yield self


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world that everything here speaks to."""
    world = World(tmp_path)
    for module in (failed_records, topic_changes):
        monkeypatch.setattr(module, "write_control", world.write)
    for module in (failed_records, repair):
        monkeypatch.setattr(module, "consumer", world.kafka.consumer)
    monkeypatch.setattr(failed_records, "producer", world.producer)
    monkeypatch.setattr(failed_records, "settled_streams", world.settled)
    monkeypatch.setattr(failed_records, "settled_stream", world.one)
    return world


@pytest.mark.parametrize(("offset", "asked"), [(2, []), (3, []), (4, [0]), (6, [0]), (7, [0, 1]), (12, [0, 1])])
async def test_a_record_is_skipped_by_the_mills_that_have_not_passed_it(
    world: World, offset: int, asked: list[int]
) -> None:
    """Each stream of theirs is asked; where none is left, it is refused and nothing is written."""
    world.stream(sequence_length=3).send(0, 5)
    world.stream("-v2", sequence_length=6).send(0, 8)
    names = [stream.stream.name for stream in world.streams]
    wanted = [names[number] for number in asked]
    if wanted:
        passed = [name for name in names if name not in wanted]
        assert await skip(world.settings, RAW, 0, offset) == (wanted, passed)
    else:
        with pytest.raises(InputError, match=f"has published tokens of offset {offset}"):
            await skip(world.settings, RAW, 0, offset)
    assert world.written == [(f"control.{name}", SKIP_REQUEST_KEY) for name in wanted]


async def test_the_streams_of_one_mill_are_skipped_in_together_or_not_at_all(world: World) -> None:
    """One of two splits has passed the record: the other one's blocks depend on it as well."""
    first = world.stream()
    second = world.stream("-twin")
    recipe = replace(second.recipe, split=first.recipe.split)
    assert replace(recipe, split="").fingerprint == replace(first.recipe, split="").fingerprint
    first.send(0, 8)
    with pytest.raises(InputError, match="has published tokens of offset 3"):
        await skip(world.settings, RAW, 0, 3)
    assert world.written == []
    assert len((await skip(world.settings, RAW, 0, 12))[0]) == 2
    for stream in world.streams:
        stream.settled.control.skips[0] = {13}
    world.written.clear()
    assert len((await skip(world.settings, RAW, 0, 13))[0]) == 2
    assert world.written == []  # it stands on the list already


@pytest.mark.parametrize(
    ("partition", "offset", "text"),
    [
        (0, 20, "no record at offset 20; it reaches from 0 to 19"),
        (0, -1, "offset -1; it"),
        (1, 0, "partitions 0 to 0"),
        (-1, 0, "partitions 0"),
    ],
)
async def test_what_is_no_record_is_not_skipped(world: World, partition: int, offset: int, text: str) -> None:
    """Nothing is written."""
    world.stream()
    with pytest.raises(InputError, match=text):
        await skip(world.settings, RAW, partition, offset)
    assert world.written == []


async def test_what_is_taken_over_stands_on_every_control_topic_before_it_is_in_force(world: World) -> None:
    """A mill that dies between the two leaves it to the next one, which writes what is missing."""
    streams = [world.stream(), world.stream("-v2")]
    for stream in streams[:1]:
        key, value = skip_request_record(0, 5)
        world.kafka.append(stream.stream.control_topic, 0, value, key=key)
    start = [Cursor(0, 0, 0, NO_RECORD)] * 2
    topics = [stream.stream.control_topic for stream in streams]
    async with world.kafka.consumer(world.settings) as client:
        skipping = SkipList(world.settings, [stream.settled for stream in streams])
        world.fails_at = 1
        with pytest.raises(BrokerError):
            await skipping.settle(client, 0, start)
        assert world.written == [(topics[0], SKIP_KEY)]
        world.fails_at = None
        again = SkipList(world.settings, [stream.settled for stream in streams])
        assert await again.settle(client, 0, start) == {5}
        assert world.written == [(topic, SKIP_KEY) for topic in topics]
        assert await again.settle(client, 0, start) == {5}
        assert len(world.written) == 2
        key, value = skip_request_record(0, 6)
        world.kafka.append(topics[1], 0, value, key=key)
        assert await again.settle(client, 0, start) == {5, 6}
        assert world.written[2:] == [(topic, SKIP_KEY) for topic in topics]


async def test_a_message_that_readers_take_is_not_ignored(world: World) -> None:
    """Whatever people say; nor one that they may take once a block before it is there."""
    stream = world.stream()
    stream.send(0, 4)
    topic = stream.stream.tokens_topic
    for offset in range(4):
        with pytest.raises(InputError, match="readers take it"):
            await ignore(world.settings, topic, 0, offset)
    world.kafka.send(topic, 0, stream.messages[0][6:7])
    with pytest.raises(InputError, match="blocks before it are missing"):
        await ignore(world.settings, topic, 0, 4)
    late = world.stream("-late")
    late.send(0, 3, first=2)
    with pytest.raises(InputError, match="blocks before it are missing"):
        await ignore(world.settings, late.stream.tokens_topic, 0, 0)
    for partition, offset, text in (
        (0, 5, "holds no record at offset 5; it"),
        (1, 0, "partitions 0 to 0, not 1"),
    ):
        with pytest.raises(InputError, match=text):
            await ignore(world.settings, topic, partition, offset)
    with pytest.raises(InputError, match="no token topic"):
        await ignore(world.settings, RAW, 0, 0)
    assert world.written == []


@pytest.mark.parametrize("kind", ["junk", "foreign", "different"])
async def test_a_message_that_no_reader_takes_is_ignored_once(world: World, kind: str) -> None:
    """By itself, or where it stands in the chain; it is written durably, and not again."""
    stream = world.stream()
    stream.send(0, 4)
    topic = stream.stream.tokens_topic
    bad = stream.messages[0][3]
    if kind == "junk":
        world.kafka.append(topic, 0, b"junk")
    elif kind == "foreign":
        world.kafka.send(topic, 0, [replace(bad, fingerprint=bytes(16))])
    else:
        other = MemoryStream(MemoryKafka(), world.settings, [5]).messages[0][4]
        after = roll(bytes(16), bytes(other.tokens), other.entries)[-1]  # it agrees with itself
        world.kafka.send(topic, 0, [replace(other, before=bytes(16), after=after)])
    for _ in range(2):
        name, reason = await ignore(world.settings, topic, 0, 4)
        assert (name, bool(reason)) == (stream.stream.name, True)
        async with world.kafka.consumer(world.settings) as client:
            await read_on(client, {stream.stream.control_topic: stream.settled.control})
        assert world.written == [(stream.stream.control_topic, IGNORE_KEY)]
    assert stream.settled.control.ignored.offsets() == {0: [4]}


PLACES: list[Place] = [RecordPlace(RAW, 0, 3), RecordPlace(RAW, 0, 7), SourcePlace(RAW, "ab", "file:8")]
LETTERS = dead_letter_topic(RAW)


def letters(world: World) -> None:
    """Write a dead letter of each place, the first one twice."""
    for place, reason in [*zip(PLACES, ("bad", "bad", "worse"), strict=True), (PLACES[0], "bad")]:
        headers = encode_dead_letter(place, reason=reason, detail="", timestamp=0)
        world.kafka.append(LETTERS, 0, b"value", headers=headers)


async def test_a_kill_between_record_and_note_sends_a_record_again_and_loses_none(world: World) -> None:
    """At any moment: the note comes after the record; what was noted is not sent again."""
    wish = ResendRequest(RAW, reasons=["bad"])
    for fails_at in range(5):
        letters(world)
        before = len(world.kafka.logs[TopicPartition(RAW, 0)])
        world.sent.clear()
        world.sending_fails_at = fails_at
        if fails_at < 4:
            with pytest.raises(BrokerError):
                await resend(world.settings, wish)
        else:
            assert await resend(world.settings, wish) == ResendOutcome(2, 10, 0, 0)
        world.sending_fails_at = None
        done = await resend(world.settings, wish)
        assert (done.sent, done.before) == (2 - fails_at // 2, fails_at // 2)
        sent = [dict(r.headers)[RESENT] for r in world.kafka.logs[TopicPartition(RAW, 0)][before:]]
        assert sorted(set(sent)) == [b"raw-text/0/3", b"raw-text/0/7"]
        assert len(sent) == 2 + fails_at % 2
        assert world.sent[:2] == [RAW, LETTERS] or fails_at == 1
        world.kafka.logs[TopicPartition(LETTERS, 0)].clear()


async def test_who_interrupts_a_resend_leaves_no_record_without_its_note(world: World) -> None:
    """Ctrl-C while a record is on its way: the note follows, and another call sends the others."""
    letters(world)
    wish, done = ResendRequest(RAW, reasons=["bad"]), ResendOutcome()
    task = asyncio.ensure_future(resend(world.settings, wish, done))
    while not world.sent:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    assert world.sent == [RAW]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (world.sent, done.sent) == ([RAW, LETTERS], 1)
    rest = await resend(world.settings, wish)
    assert (rest.sent, rest.before, world.sent) == (1, 1, [RAW, LETTERS] * 2)


async def test_dead_letters_are_counted_by_place(world: World) -> None:
    """A dry run sends nothing; what was sent back is counted once; again only on purpose."""
    letters(world)
    world.kafka.append(LETTERS, 0, b"neither")
    wish = ResendRequest(RAW, reasons=["bad"], places=[PLACES[2]])
    assert (await resend(world.settings, wish, dry_run=True)).sent == 3
    assert world.sent == []
    assert (await resend(world.settings, wish)).sent == 3
    assert (await resend(world.settings, wish)).before == 3
    assert (await resend(world.settings, replace(wish, again=True))).sent == 3
    counts = await count_dead_letters(world.settings, RAW)
    assert (counts.letters, dict(counts.reasons), counts.resent) == (4, {"bad": 2, "worse": 1}, 3)
    notes = [r for r in world.kafka.logs[TopicPartition(LETTERS, 0)] if NOTE in dict(r.headers)]
    assert [r.value for r in notes] == [None] * 6


async def test_a_letter_is_sent_back_once_however_often_it_was_written(world: World) -> None:
    """Of several letters of one place the first; of those that are not meant none; each is noted behind itself."""
    record, item, topic = RecordPlace(RAW, 5, 17), SourcePlace(RAW, "ab", "a:1"), TopicPartition(LETTERS, 1)
    original = [("own", b"header"), (RESENT, b"before")]
    world.kafka.logs[TopicPartition(LETTERS, 0)] = []
    for place, reason, value in (
        (record, "bad", b"value"),
        (record, "worse", b"value"),
        (RecordPlace(RAW, 1, 1), "other", b"value"),
        (item, "bad", b""),
    ):
        headers = encode_dead_letter(place, reason=reason, detail="", timestamp=1, original=original)
        world.kafka.append(topic.topic, topic.partition, value, key=b"key", headers=headers)
    done, reported = ResendOutcome(), list[int]()

    wish = ResendRequest(RAW, reasons=["bad"])
    await resend(world.settings, wish, done, progress=lambda: reported.append(done.sent))

    assert (world.sent, reported) == ([RAW, LETTERS], [1])
    assert (done.sent, done.bytes, done.before, done.without_value) == (1, 5, 0, 1)
    (sent,), note = world.kafka.logs[TopicPartition(RAW, 5)], world.kafka.logs[topic][-1]
    assert (sent.key, sent.value, sent.headers) == (b"key", b"value", (original[0], (RESENT, b"raw-text/5/17")))
    assert (note.key, note.value, note.headers) == (b"", None, ((NOTE, b"raw-text/5/17"),))
    for place, words in ((RecordPlace(RAW, 1, 2), "no dead letter of raw-text/1/2: .*list raw"), (item, "no value")):
        with pytest.raises(InputError, match=words):
            await resend(world.settings, ResendRequest(RAW, places=[place]))
    repaired = ResendRequest(RAW, places=[item], values={item: b"repaired"})
    assert (await resend(world.settings, repaired)).bytes == 8


ORDERS = [[(n, n + 1) for n in numbers] for numbers in ([0, 1, 2, 3, 4, 5], [3, 4, 0, 1, 2, 5], [5, 0, 1, 2, 3, 4])]
ORDERS += [[(0, 1), (1, 2), (2, 3), (2, 3), (3, 6)], [(2, 4), (0, 2), (4, 5), (1, 3), (5, 6)]]
"""Blocks of the messages on a token topic: in order, out of it, written again, and again with others."""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("junk", [None, 0, 3])
def test_a_token_topic_gives_the_blocks_that_are_asked_for(
    world: World, order: list[tuple[int, int]], junk: int | None
) -> None:
    """Wherever they stand, whatever stands between; a message that contradicts itself gives none."""
    stream = world.stream()
    topic = stream.stream.tokens_topic
    for place, (first, end) in enumerate(order):
        if place == junk:
            world.kafka.append(topic, 0, b"junk")
            world.kafka.send(topic, 0, [replace(stream.messages[0][2], after=bytes(16))])
            world.kafka.send(topic, 0, [replace(stream.messages[0][2], fingerprint=bytes(16))])
        world.kafka.send(topic, 0, [joined(stream.messages[0][first:end])])
    donor = TopicDonor(world.settings, stream.recipe, TopicPartition(topic, 0))
    for first, end in ((0, 6), (2, 3), (2, 5), (5, 6), (4, 8)):
        given = {block.number: block for block in donor(first, end)}
        wanted = stream.messages[0][first : min(end, 6)]
        assert given == {m.first: Given(m.first, bytes(m.tokens), m.entries[0], m.before) for m in wanted}
    assert list(donor(6, 8)) == []


@pytest.mark.parametrize("file", ["stream.json", "tokenizer.json"])
@pytest.mark.parametrize("state", ["whole", "damaged", "missing"])
def test_a_description_is_mended_and_what_was_damaged_is_kept(world: World, file: str, state: str) -> None:
    """From another store; what is whole stays as it is."""
    genesis = world.stream().settled.genesis
    info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    store = Store.open_or_create(world.settings.store)
    store.add_stream(info, b'{"a": 1}')
    path = store.path / info.name / file
    whole = path.read_bytes()
    if state == "damaged":
        path.write_bytes(b"{")
    if state == "missing":
        path.unlink()
    found, rewritten = rewrite_description(store.path, info.name, lambda: (info, b'{"a": 1}'))
    assert found == info
    assert rewritten == ([] if state == "whole" else [str(path)])
    assert path.read_bytes() == whole
    broken = path.with_name(f"{file}.broken")
    assert broken.exists() == (state == "damaged")
    if state == "damaged":
        assert broken.read_bytes() == b"{"


def test_another_streams_description_is_not_written_over(world: World) -> None:
    """It is whole, and says other settings; a donor's damaged tokenizer is not taken."""
    genesis = world.stream().settled.genesis
    info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    other = StreamInfo.from_genesis(replace(genesis, segment_blocks=8), 8)
    store = Store.open_or_create(world.settings.store)
    store.add_stream(info, b"{}")
    before = (store.path / info.name / "stream.json").read_bytes()
    with pytest.raises(FingerprintError, match="made with other settings"):
        rewrite_description(store.path, info.name, lambda: (other, b"{}"))
    assert (store.path / info.name / "stream.json").read_bytes() == before
    with pytest.raises(DamagedError, match="is not the tokenizer of its stream"):
        described_in(store.path, info.name)
