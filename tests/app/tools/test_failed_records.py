"""Dead letters counted, shown and sent back; the skip and the ignore list; on real brokers and in memory."""

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition

from tests.app.commands import invoke
from tests.app.segments.mirror.memory_kafka import MemoryKafka, MemoryStream
from tests.app.tools.verify.conftest import joined, tiny_settings
from tests.conftest import TopicFactory
from tests.milled import Milled, all_in_eras
from tests.service import WAIT_SECONDS, Raw, Service, in_own_loop, raw_records, reference_blocks, send, service_settings
from tokenmill.app.kafka.control_log import IGNORE_KEY, SKIP_KEY, SKIP_REQUEST_KEY, skip_request_record
from tokenmill.app.kafka.control_topic import read_on
from tokenmill.app.kafka.dead_letters import (
    NOTE,
    PREFIX,
    Place,
    RecordPlace,
    SourcePlace,
    cut_letter,
    encode_dead_letter,
)
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill import topic_changes
from tokenmill.app.mill.topic_changes import SkipList
from tokenmill.app.milling.outcomes import SKIPPED
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools import failed_records, repair
from tokenmill.app.tools.failed_records import (
    RESENT,
    ResendOutcome,
    ResendRequest,
    count_dead_letters,
    find_dead_letter,
    ignore,
    resend,
    skip,
)
from tokenmill.app.tools.repair import Given, TopicDonor, described_in, rewrite_description
from tokenmill.app.tools.verify import verify
from tokenmill.app.tools.verify.verification import check_dead_letters
from tokenmill.app.tools.verify.verify_result import ChainResult
from tokenmill.errors import BrokerError, DamagedError, FingerprintError, InputError, TopicError
from tokenmill.recipe import Genesis
from tokenmill.store import Store, StreamInfo
from tokenmill.wire.chain import NO_RECORD, Cursor, roll


async def test_each_record_is_counted_once(milled: Milled) -> None:
    counts = await count_dead_letters(milled.settings, milled.raw_topic)
    assert (counts.reasons, counts.letters, counts.resent) == ({"invalid_utf8": 3}, 3, 0)
    letter = await find_dead_letter(milled.settings, RecordPlace(milled.raw_topic, 1, 10))
    assert (letter.value, letter.reason, letter.exception) == (b"\xff no UTF-8", "invalid_utf8", "UnicodeDecodeError")
    with pytest.raises(InputError, match=f"{milled.raw_topic}.dead-letters holds no dead letter of .*/1/0"):
        await find_dead_letter(milled.settings, RecordPlace(milled.raw_topic, 1, 0))
    with pytest.raises(TopicError, match="missing"):
        await count_dead_letters(milled.settings, "nothing")
    with pytest.raises(TopicError, match="no stream of nothing is settled"):
        await skip(milled.settings, "nothing", 0, 0)


def test_the_commands_list_count_and_show(milled: Milled) -> None:
    settings, name = milled.settings, milled.raw_topic
    place = f"{name}/1/10"
    assert place in run(settings, "list", name).decode()
    listed = json.loads(run(settings, "list", name, "--partition", "1", "--json"))
    wanted = [(1, 10, "invalid_utf8"), (1, 11, "invalid_utf8")]
    assert [(one["partition"], one["offset"], one["reason"]) for one in listed] == wanted
    assert len(json.loads(run(settings, "list", name, "--limit", "1", "--json"))) == 1
    assert json.loads(run(settings, "list", name, "--reason", "too_deep", "--json")) == []
    counts = json.loads(run(settings, "count", name, "--json"))
    assert counts == {"topic": name, "records": 3, "letters": 3, "resent": 0, "reasons": {"invalid_utf8": 3}}
    assert run(settings, "show", place, "--value") == b"\xff no UTF-8"
    assert json.loads(run(settings, "show", place, "--json"))["value"] == "/yBubyBVVEYtOA=="
    assert b"invalid_utf8" in run(settings, "show", place)
    run(settings, "show", name, code=12)
    run(settings, "resend", name, code=12)
    dry = run(settings, "resend", name, "--reason", "invalid_utf8", "--dry-run")
    assert dry == f"would send 3 records, 30 B, to {name}\n".encode()


def test_repaired_records_go_back_and_are_milled(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = service_settings(broker, topic(2), tmp_path, splits={"train": 1000})
    (name,), own = settings.raw_topics, [("mine", b"header")]

    def counted() -> tuple[int, dict[str, int], int]:
        counts = in_own_loop(lambda: count_dead_letters(settings, name))
        return counts.letters, counts.reasons, counts.resent

    send(settings, [Raw(b"good"), Raw(b"caf\xe9", 1, b"key", own), Raw(b"\xff", 1), Raw(b"\xfe", 0)])
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(lambda: counted()[1] == {"invalid_utf8": 3})
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("café".encode())))
        assert b"sent 1 record" in run(settings, "resend", f"{name}/1/0", "--value", "-")
        assert b"sent 2 records" in run(settings, "resend", name, "--reason", "invalid_utf8")
        service.wait_until(lambda: counted()[1] == {"invalid_utf8": 5})
        assert b"sent 0 records" in run(settings, "resend", f"{name}/1/0")
        service.stop()
    back = {record.value: record for part in raw_records(settings, name) for record in part[1:]}
    repaired = back["café".encode()]
    assert (repaired.offset, repaired.key) == (2, b"key")
    assert list(repaired.headers) == [*own, (RESENT, f"{name}/1/0".encode())]
    assert counted() == (5, {"invalid_utf8": 5}, 3)
    write_again(settings)
    assert counted()[:2] == (10, {"invalid_utf8": 5})
    run(settings, "resend", f"{name}/0/0", code=12)
    again = json.loads(run(settings, "resend", f"{name}/1/1", "--again", "--dry-run", "--json"))
    assert (again["sent"], again["sent_before"], again["dry_run"]) == (1, 0, True)


def test_letters_of_produce_are_listed_shown_and_resent(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(2)
    settings = with_topics(broker, name)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "one"}\n' + b"no JSON\n" * 20 + b"x" * 3000)
    produce = ["produce", name, str(file), "--on-error", "dead-letter", "--max-record-bytes", "2000"]
    for more in ([], ["--no-resume"]):
        invoke(*produce, *more, "--bootstrap-servers", settings.bootstrap_servers, code=0)

    dead = dead_letter_topic(name)
    assert all(raw_records(settings, dead)), "letters are spread over both partitions"
    write_again(settings)
    counts = json.loads(run(settings, "count", name, "--json"))
    assert counts == {"topic": name, "records": 42, "letters": 84, "resent": 0, "reasons": {"not_produced": 42}}
    listed = json.loads(run(settings, "list", name, "--json"))
    assert {one["source"] for one in listed} == {f"{file}:{line}" for line in range(2, 23)}
    assert len({one["run"] for one in listed}) == 2
    assert all(one["timestamp"] > 0 for one in listed)
    assert json.loads(run(settings, "list", name, "--partition", "0", "--json")) == []
    bad = next(one for one in listed if one["source"].endswith(":2"))["place"]
    assert bad in run(settings, "list", name).decode()
    assert run(settings, "show", bad, "--value") == b"no JSON"

    long = next(one for one in listed if one["source"].endswith(":22"))["place"]
    run(settings, "resend", long, code=12)
    assert b"sent 40 records" in run(settings, "resend", name, "--reason", "not_produced")
    (tmp_path / "short").write_bytes(b"short")
    assert b"sent 1 record" in run(settings, "resend", long, "--value", str(tmp_path / "short"))
    back = [record for part in raw_records(settings, name) for record in part if dict(record.headers).get(RESENT)]
    assert sorted(record.value or b"" for record in back) == [*[b"no JSON"] * 40, b"short"]
    assert {dict(record.headers)[RESENT] for record in back} >= {bad.encode(), long.encode()}

    chain = ChainResult(f"{name}.train", 0, name, (0, 9), (0, 9))
    chain.dead_letters.extend([2])
    ends = {number: (0, len(part)) for number, part in enumerate(raw_records(settings, dead))}
    differences, _ = in_own_loop(lambda: check_dead_letters(settings, name, [chain], ends))
    assert [(d.partition, d.offset) for d in differences] == [(0, 2)], "no letter of produce is taken for a record's"


def test_a_cut_letter_goes_back_with_a_value_that_is_given(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic()
    settings, place, value = with_topics(broker, name), f"{name}/0/3", tmp_path / "value"
    headers = encode_dead_letter(RecordPlace(name, 0, 3), reason="too_large", detail="", timestamp=1)
    cut = cut_letter(b"k" * 5000, b"v" * 5000, headers, 4000)
    assert cut.key is not None
    send(settings, [Raw(cut.value, 0, cut.key, cut.headers)], dead_letter_topic(name))

    shown = json.loads(run(settings, "show", place, "--json"))
    assert shown["whole_value"] == {"bytes": 5000, "sha256": sha256(b"v" * 5000).hexdigest()}
    assert shown["whole_key"]["bytes"] == 5000
    assert shown["value_bytes"] < 4000
    done = json.loads(run(settings, "resend", name, "--reason", "too_large", "--json"))
    assert (done["sent"], done["without_value"]) == (0, 1)
    run(settings, "resend", place, code=12)
    value.write_bytes(b"v" * 5000)
    run(settings, "resend", place, "--value", str(value))
    ((record,),) = raw_records(settings, name)
    assert (record.key, record.value) == (None, b"v" * 5000)


def test_what_the_raw_topic_does_not_take_is_said(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    name, value = topic(max_message_bytes=1000), tmp_path / "value"
    settings = with_topics(broker, name)
    headers = encode_dead_letter(RecordPlace(name, 0, 3), reason="too_large", detail="", timestamp=1)
    send(settings, [Raw(b"", 0, None, headers)], dead_letter_topic(name))
    for size in (2000, 20_000_000):
        value.write_bytes(b"v" * size)
        run(settings, "resend", f"{name}/0/3", "--value", str(value), code=4)


def with_topics(broker: Broker, raw_topic: str) -> Settings:
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw_topic,))
    in_own_loop(lambda: ensure_topics(settings))
    return settings


def write_again(settings: Settings) -> None:
    """Write every dead letter once more, as a mill does that does not know that they are there."""
    dead_letters = dead_letter_topic(settings.raw_topics[0])
    found = [record for part in raw_records(settings, dead_letters) for record in part]
    marked = [record for record in found if f"{PREFIX}reason" in dict(record.headers)]
    again = [Raw(record.value, 0, record.key, [(k, v or b"") for k, v in record.headers]) for record in marked]
    send(settings, again, dead_letters)


def run(settings: Settings, *arguments: str, code: int = 0) -> bytes:
    told = invoke("dead-letters", *arguments, "--bootstrap-servers", settings.bootstrap_servers, code=code)
    return told.out.encode(errors="surrogateescape")


POISON = 20


def test_a_skipped_record_no_longer_kills_workers(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    settings = service_settings(
        broker, topic(), tmp_path, function="tests.app.own_functions:fragile", splits={"train": 500, "validation": 500}
    )
    texts = [f"a text of some length, number {number}" for number in range(40)]
    texts[POISON] = "poison"
    send(settings, [Raw(text.encode()) for text in texts])
    with Service(settings, tmp_path) as service:
        assert service.mill()[0].process.wait(WAIT_SECONDS) == 13
        skipped, _ = in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, POISON))
        assert skipped == [stream.name for stream in settings.streams()]
        service.mill()
        service.segment()
        chains = service.wait_until_complete(skips=[POISON])
        service.wait_until(lambda: all_in_eras(settings, chains))
        service.stop()
    result = verify(settings, store=settings.store, processes=1)
    assert result.complete
    assert result.blocks == sum(map(len, reference_blocks(settings, [POISON]).values()))
    assert result.totals.dead_lettered == {SKIPPED: 1}


RAW = "raw-text"


class World:
    """Brokers in memory with a raw topic of 20 records, and streams made of it; all that is written is noted."""

    def __init__(self, directory: Path) -> None:
        self.kafka = MemoryKafka()
        self.settings = tiny_settings(directory)
        self.streams: list[MemoryStream] = []
        self.written: list[tuple[str, Any]] = []
        self.fails_at: int | None = None
        """Of the writes to control topics, the one that fails; `sending_fails_at`: of the records that are sent."""
        self.sent: list[str] = []
        self.sending_fails_at: int | None = None
        for number in range(20):
            self.kafka.append(RAW, 0, f"{number}".encode())

    def stream(self, suffix: str = "", blocks: int = 8, **changes: Any) -> MemoryStream:
        settings = self.settings.model_copy(update={"stream_suffix": suffix, **changes})
        self.streams.append(MemoryStream(self.kafka, settings, [blocks]))
        return self.streams[-1]

    async def write(self, _settings: Settings, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        if self.fails_at == len(self.written):
            raise BrokerError
        for key, value in records:
            self.written.append((topic, key))
            self.kafka.append(topic, 0, value, key=key)

    async def partitions_for(self, topic: str) -> set[int]:
        return {tp.partition for tp in self.kafka.logs if tp.topic == topic}

    async def send_and_wait(self, topic: str, value: bytes | None, key: Any, partition: int, *, headers: Any) -> None:
        if self.sending_fails_at == len(self.sent):
            raise BrokerError
        self.sent.append(topic)
        self.kafka.append(topic, partition, value, key=key, headers=headers)
        await asyncio.sleep(0)  # others may come in between, as they do while a broker acknowledges


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world that everything here speaks to, as a producer as well."""
    world = World(tmp_path)
    settled = {
        "settled_streams": lambda *_: [stream.settled for stream in world.streams],
        "settled_stream": lambda _, name: next(one.settled for one in world.streams if one.stream.name == name),
    }
    for name, tell in settled.items():
        monkeypatch.setattr(failed_records, name, AsyncMock(side_effect=tell))
    for module in (failed_records, topic_changes):
        monkeypatch.setattr(module, "write_control", world.write)
    for module in (failed_records, repair):
        monkeypatch.setattr(module, "consumer", world.kafka.consumer)
    monkeypatch.setattr(failed_records, "producer", lambda _: nullcontext(world))
    return world


@pytest.mark.parametrize(("offset", "asked"), [(2, []), (3, []), (4, [0]), (6, [0]), (7, [0, 1]), (12, [0, 1])])
async def test_a_record_is_skipped_by_mills_that_did_not_pass_it(world: World, offset: int, asked: list[int]) -> None:
    world.stream(sequence_length=3).send(0, 5)
    world.stream("-v2", sequence_length=6).send(0, 8)
    names = [stream.stream.name for stream in world.streams]
    wanted = [names[number] for number in asked]
    if wanted:
        skipped = (wanted, [name for name in names if name not in wanted])
        assert await skip(world.settings, RAW, 0, offset) == skipped
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
    ("place", "text"),
    [
        ((0, 20), "no record at offset 20; it reaches from 0 to 19"),
        ((0, -1), "offset -1; it"),
        ((1, 0), "partitions 0 to 0"),
        ((-1, 0), "partitions 0"),
    ],
)
async def test_what_is_no_record_is_not_skipped(world: World, place: tuple[int, int], text: str) -> None:
    world.stream()
    with pytest.raises(InputError, match=text):
        await skip(world.settings, RAW, *place)
    assert world.written == []


async def test_what_is_taken_over_stands_on_every_control_topic_before_it_is_in_force(world: World) -> None:
    """A mill that dies between the two leaves it to the next one, which writes what is missing."""
    streams = [world.stream(), world.stream("-v2")]
    topics, start = [stream.stream.control_topic for stream in streams], [Cursor(0, 0, 0, NO_RECORD)] * 2

    def asked(topic: str, offset: int) -> None:
        key, value = skip_request_record(0, offset)
        world.kafka.append(topic, 0, value, key=key)

    asked(topics[0], 5)
    settled = [stream.settled for stream in streams]
    async with world.kafka.consumer(world.settings) as client:
        world.fails_at = 1
        with pytest.raises(BrokerError):
            await SkipList(world.settings, settled).settle(client, 0, start)
        assert world.written == [(topics[0], SKIP_KEY)]
        world.fails_at, again = None, SkipList(world.settings, settled)
        for _ in range(2):
            assert await again.settle(client, 0, start) == {5}
            assert world.written == [(topic, SKIP_KEY) for topic in topics]
        asked(topics[1], 6)
        assert await again.settle(client, 0, start) == {5, 6}
        assert world.written[2:] == [(topic, SKIP_KEY) for topic in topics]


async def test_a_message_that_readers_take_is_not_ignored(world: World) -> None:
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
    for partition, offset, text in ((0, 5, "holds no record at offset 5; it"), (1, 0, "partitions 0 to 0, not 1")):
        with pytest.raises(InputError, match=text):
            await ignore(world.settings, topic, partition, offset)
    with pytest.raises(InputError, match="no token topic"):
        await ignore(world.settings, RAW, 0, 0)
    assert world.written == []


@pytest.mark.parametrize("kind", ["junk", "foreign", "different"])
async def test_a_message_that_no_reader_takes_is_ignored_once(world: World, kind: str) -> None:
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


def write_letters(world: World) -> None:
    """Write a dead letter of each place, the first one twice."""
    for place, reason in [*zip(PLACES, ("bad", "bad", "worse"), strict=True), (PLACES[0], "bad")]:
        headers = encode_dead_letter(place, reason=reason, detail="", timestamp=0)
        world.kafka.append(LETTERS, 0, b"value", headers=headers)


async def test_a_kill_between_record_and_note_sends_a_record_again_and_loses_none(world: World) -> None:
    """At any moment: the note comes after the record; what was noted is not sent again."""
    wish = ResendRequest(RAW, reasons=["bad"])
    for fails_at in range(5):
        write_letters(world)
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
    write_letters(world)
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
    write_letters(world)
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
def test_a_token_topic_gives_the_blocks_asked_for(world: World, order: list[tuple[int, int]], junk: int | None) -> None:
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
    store, info, _ = described(world, b'{"a": 1}')
    path = store.path / info.name / file
    whole, broken = path.read_bytes(), path.with_name(f"{file}.broken")
    if state == "damaged":
        path.write_bytes(b"{")
    if state == "missing":
        path.unlink()
    found = rewrite_description(store.path, info.name, lambda: (info, b'{"a": 1}'))
    assert found == (info, [] if state == "whole" else [str(path)])
    assert path.read_bytes() == whole
    assert broken.exists() == (state == "damaged")
    assert state != "damaged" or broken.read_bytes() == b"{"


def described(world: World, tokenizer: bytes) -> tuple[Store, StreamInfo, Genesis]:
    genesis = world.stream().settled.genesis
    store, info = Store.open_or_create(world.settings.store), StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    store.add_stream(info, tokenizer)
    return store, info, genesis


def test_another_streams_description_is_not_written_over(world: World) -> None:
    """It is whole, and says other settings; a donor's damaged tokenizer is not taken."""
    store, info, genesis = described(world, b"{}")
    other = StreamInfo.from_genesis(replace(genesis, segment_blocks=8), 8)
    before = (store.path / info.name / "stream.json").read_bytes()
    with pytest.raises(FingerprintError, match="made with other settings"):
        rewrite_description(store.path, info.name, lambda: (other, b"{}"))
    assert (store.path / info.name / "stream.json").read_bytes() == before
    with pytest.raises(DamagedError, match="is not the tokenizer of its stream"):
        described_in(store.path, info.name)
