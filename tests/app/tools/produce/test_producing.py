"""Produce: what lies in files arrives in the raw topic, once, in order, also by later calls; what cannot is named."""

import asyncio
import gzip
import json
import os
import random
import re
import signal
import struct
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import xxhash
from aiokafka.admin import NewPartitions, NewTopic

from tests.app.commands import invoke
from tests.app.sources.reading import content_of, reading_of
from tests.app.tools.verify.conftest import settle_streams
from tests.commands import run
from tests.conftest import TopicFactory
from tests.service import in_own_loop, raw_records
from tokenmill.app.kafka import clients
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import ensure_topics, partition_count
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, find_sources
from tokenmill.app.sources.conditions import Condition
from tokenmill.app.tools.produce import run_notes
from tokenmill.app.tools.produce.producing import Resuming, RunPlan, flush, partition_of, produce
from tokenmill.app.tools.produce.run_notes import NOTHING_BEFORE, RunEnd, RunStart, run_identity
from tokenmill.app.tools.produce.sending import Summary, dry_run, require_leaders
from tokenmill.documents import FLUSH_HEADER
from tokenmill.errors import BrokerError, ClockError, InputError, MissingTopicError, SettingsError, TopicError


def sources_of(settings: Settings, *paths: Path, **options: Any) -> list[DocumentSource]:
    return find_sources([str(path) for path in paths], reading_of(settings, **options))


def jsonl(path: Path, count: int) -> list[bytes]:
    lines = [json.dumps({"id": str(number), "text": f"text {number} " * 9}).encode() for number in range(count)]
    path.write_bytes(b"\n".join(lines))
    return lines


def dealt(lines: list[bytes], count: int) -> list[list[tuple[None, bytes]]]:
    found: list[list[tuple[None, bytes]]] = [[] for _ in range(count)]
    for number, line in enumerate(lines):
        begin = int(xxhash.xxh32_hexdigest(struct.pack("<Q", number // count)), 16)
        found[(number + begin) % count].append((None, line))
    return found


@pytest.mark.parametrize("count", [2, 3, 4, 8, 12])
@pytest.mark.parametrize("period", [2, 3, 4, 6, 8, 12])
def test_every_partition_gets_of_what_alternates(count: int, period: int) -> None:
    """One long line, and then some short ones, again and again: in each part of each partition as in the whole."""
    for part in range(4):
        numbers = range(part * 1000 * count, (part + 1) * 1000 * count)
        found = [partition_of(number, None, count) for number in numbers]
        long = [0] * count
        for number, partition in zip(numbers, found, strict=True):
            long[partition] += number % period == 0
        assert [found.count(partition) for partition in range(count)] == [1000] * count
        assert long == pytest.approx([1000 / period] * count, abs=5 * (1000 / period) ** 0.5)


async def test_what_conditions_leave_out_is_counted(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """It takes no numbers, so documents are spread evenly; the bar's end is in the summary from the start."""
    raw = topic(2)
    lines = jsonl(tmp_path / "a.jsonl", 100)
    sources = sources_of(settings, tmp_path / "a.jsonl", where=[Condition.parse("id not in 1,3,5")])
    limits: set[int | None] = set()
    summary = await produce(settings, raw, sources, RunPlan(limit=10), lambda now: limits.add(now.limit))
    assert limits == {10}
    wanted = [line for number, line in enumerate(lines) if number not in (1, 3, 5)][:10]
    assert await content_of(settings, raw, 2) == dealt(wanted, 2)
    assert (summary.documents, summary.unmet, summary.without_field) == (10, 3, 0)


async def test_equal_keys_share_a_partition(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic(4)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number % 5}, "text": "{number}"}}\n' for number in range(20)) + '{"text": "z"}')
    summary = await produce(settings, raw, sources_of(settings, path, key="id"))
    found = await content_of(settings, raw, 4)
    for key in (b"0", b"1", b"2", b"3", b"4"):
        assert [sum(k == key for k, _ in records) for records in found if any(k == key for k, _ in records)] == [4]
    assert [refused.why for refused in summary.examples] == ["no_key: no field 'id' for the key"]


ALL, LARGE = set(range(40)), {5, 6, 17, 39}


@pytest.mark.parametrize(
    ("config", "outcome"),
    [
        ({"max_message_bytes": 3000}, (LARGE, r"too_large: .* of 40\d\d bytes, 4\d\d\d as .*max\.message\.bytes=3000")),
        ({"max_message_bytes": 3000, "compression_type": "gzip"}, (LARGE, r"too_large: .*compression\.type=gzip")),
        (
            {"cleanup_policy": "compact"},
            (ALL, r"no_key: .* \d+ bytes.*\(the topic has cleanup\.policy=compact\).*--key"),
        ),
        ({"message_timestamp_type": "LogAppendTime", "message_timestamp_before_max_ms": 0}, (set(), "")),
    ],
    ids=["small", "compressed", "compacted", "times of brokers"],
)
async def test_only_the_records_that_a_topic_refuses_are_passed_over(
    settings: Settings, topic: TopicFactory, tmp_path: Path, config: dict[str, Any], outcome: tuple[set[int], str]
) -> None:
    raw, path, (refused, why) = topic(**config), tmp_path / "a.jsonl", outcome
    rng = random.Random(0)
    texts = [rng.randbytes(2000 if n in LARGE else 20).hex() for n in range(40)]
    lines = [b'{"id": %d, "text": "%s"}' % (number, text.encode()) for number, text in enumerate(texts)]
    path.write_bytes(b"\n".join(lines))
    plan = RunPlan(identity=run_identity(raw, {}, ["a.jsonl"]))

    summary = await produce(settings, raw, sources_of(settings, path), plan)
    again = await produce(settings, raw, sources_of(settings, path), plan)

    wanted = [(None, line) for number, line in enumerate(lines) if number not in refused]
    assert await content_of(settings, raw, 1) == [wanted]
    assert (summary.documents, summary.refused) == (len(wanted), len(refused))
    assert (again.documents, again.refused) == (0, len(refused))
    assert [found.where for found in summary.examples] == [f"{path}:{number + 1}" for number in sorted(refused)][:20]
    assert all(re.match(why, found.why) for found in summary.examples), summary.examples


async def test_what_a_topic_refuses_is_a_dead_letter_or_the_end(
    settings: Settings, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As everything that is no document; one that takes no time of this machine ends the run, whatever it is to do."""
    raw, path = topic(max_message_bytes=3000), tmp_path / "a.jsonl"
    lines = [b'{"id": 1, "text": "%s"}' % (b"x" * size) for size in (1, 5000, 2)]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=r"a\.jsonl:2: too_large.*--on-error skip"):
        await produce(settings, raw, sources_of(settings, path), RunPlan(on_error="fail"))
    assert await content_of(settings, raw, 1) == [[(None, lines[0])]]
    bad, no_text, plan = tmp_path / "b.jsonl", b'{"text": 2}', RunPlan(on_error="dead-letter")
    bad.write_bytes(no_text + b"\n\xff\n")
    with pytest.raises(TopicError, match="topics create"):
        await produce(settings, raw, sources_of(settings, tmp_path), plan)
    await ensure_topics(Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=(raw,)))
    summary = await produce(settings, raw, sources_of(settings, tmp_path), plan)
    assert (summary.documents, summary.refused) == (2, 3)
    assert (await content_of(settings, raw, 1))[0][1:] == [(None, lines[0]), (None, lines[2])]
    (letters,) = raw_records(settings, f"{raw}.dead-letters")
    told = {one.value: {name.rpartition(".")[2]: value for name, value in one.headers} for one in letters}
    places = {lines[1]: f"{path}:2", no_text: f"{bad}:1", b"\xff": f"{bad}:2"}
    assert {value: headers["source"] for value, headers in told.items()} == {k: v.encode() for k, v in places.items()}
    assert len(letters) == 3
    assert b"'text' is a number" in (told[no_text]["detail"] or b"")

    late, now = topic(message_timestamp_before_max_ms=60_000), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
    with pytest.raises(
        ClockError, match=r"a\.jsonl:1; the topic has message\.timestamp.*before\.max\.ms=60000.*LogAppend"
    ):
        await produce(settings, late, sources_of(settings, path))
    with pytest.raises(TopicError, match="does not exist"):
        await produce(settings, "no-such-topic", sources_of(settings, path))
    with pytest.raises(MissingTopicError, match="is gone"):
        await require_leaders(settings, "no-such-topic")


@pytest.mark.parametrize(
    ("suffix", "setting", "why"),
    [
        ("produced", "max.message.bytes=100", r"raise its max\.message\.bytes, or do without notes: --no-resume"),
        ("dead-letters", "max.message.bytes=100", r"raise its max\.message\.bytes"),
        ("dead-letters", "cleanup.policy=compact", r"set its cleanup\.policy=delete"),
    ],
)
async def test_topics_beside_the_raw_one_that_refuse_are_named(
    settings: Settings, topic: TopicFactory, tmp_path: Path, *, suffix: str, setting: str, why: str
) -> None:
    raw, path, config = topic(), tmp_path / "a.jsonl", dict([setting.split("=")])
    path.write_bytes(b'{"text": "a"}\nno JSON\n')
    async with admin(settings) as client:
        await client.create_topics([NewTopic(f"{raw}.{suffix}", 1, 1, topic_configs=config)])
    identity = run_identity(raw, {}, ["a.jsonl"])
    plan = RunPlan(identity=identity, on_error="skip" if suffix == "produced" else "dead-letter")
    with pytest.raises(TopicError, match=rf"{raw}\.{suffix} refuses a record.*{why}"):
        await produce(settings, raw, sources_of(settings, path), plan)


async def test_a_flush_that_a_topic_refuses_is_named(settings: Settings, topic: TopicFactory) -> None:
    """A compacted topic takes no record without a key, which a flush is."""
    with pytest.raises(TopicError, match=r"compacted topics do without a key: set its cleanup\.policy=delete"):
        await flush(settings, topic(cleanup_policy="compact"))


async def test_slow_pipes_are_sent_as_they_come(settings: Settings, topic: TopicFactory) -> None:
    raw = topic()
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", raw, "-", "--lines", "--plain"]
    command += ["--bootstrap-servers", settings.bootstrap_servers]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stderr=PIPE)
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\n")
    await process.stdin.drain()
    while len((await content_of(settings, raw, 1))[0]) < 2:
        pass
    process.send_signal(signal.SIGINT)
    _, said = await process.communicate()

    assert process.returncode == 130
    assert b"interrupted: 2 documents of this call are acknowledged" in said
    assert b"another call sends all again" in said
    assert await content_of(settings, raw, 1) == [[(None, b"first"), (None, b"second")]]


async def test_a_run_that_is_ended_says_how_far_it_is(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 2000)
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", raw, str(tmp_path / "a.jsonl")]
    command += ["--bootstrap-servers", settings.bootstrap_servers]
    process = await asyncio.create_subprocess_exec(*command, "--rate", "2kB", stderr=PIPE)
    assert process.stderr is not None
    nothing = line = b"tokenmill: 0 documents, 0 B, 0 B/s\n"
    while line == nothing:  # on a busy machine, nothing is sent when the first line is due
        line = await process.stderr.readline()
    assert re.fullmatch(rb"tokenmill: [\d,]+ documents, .*B, .*B/s, \d+% read.*\n", line)
    process.send_signal(signal.SIGTERM)
    said = (await process.stderr.read()).decode().splitlines()[-1]
    assert await process.wait() == 143

    told = re.search(
        r"interrupted: ([\d,]+) documents of this call are acknowledged .*; the same command goes on", said
    )
    assert told is not None, said
    assert len((await content_of(settings, raw, 1))[0]) == int(told[1].replace(",", "")) > 0
    assert (await asyncio.to_thread(run, command[3:], tmp_path / "again.log", {})).code == 0
    assert await content_of(settings, raw, 1) == [[(None, line) for line in lines]]


@pytest.mark.slow
@pytest.mark.needs("minutes")
async def test_each_document_arrives_once_though_the_broker_is_killed(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    await asyncio.to_thread(broker.start)
    try:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=("raw",))
        await ensure_topics(settings, partitions=2)
        lines = jsonl(tmp_path / "a.jsonl", 20_000)
        sources = sources_of(settings, tmp_path / "a.jsonl")
        acknowledged = asyncio.Event()
        # Three seconds' worth, and the kill as soon as something has arrived: well before the end.
        plan = RunPlan(rate=sum(map(len, lines)) / 3, identity=run_identity("raw", {}, ["a.jsonl"]))
        run = asyncio.create_task(
            produce(settings, "raw", sources, plan, lambda now: acknowledged.set() if now.documents else None)
        )
        await acknowledged.wait()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        summary = await run

        assert summary.documents == 20_000
        assert await content_of(settings, "raw", 2) == [[(None, line) for line in lines[n::2]] for n in (0, 1)]
    finally:
        await asyncio.to_thread(broker.stop)


async def test_a_dry_run_says_what_the_run_does(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    files = {
        "cut.jsonl": b'{"text": "one"}\n{"text": "tw\n{"text": NaN}\n{"text": "two"}\n',
        "log.json": b'{"text": "one"}\nError\n{"text": "two"}\n',
        "wiki_00": b'{"text": "one"}\n{"text": "two"}\n',
        "values": b'"one"\n"two"\n',
        "stray.csv": b'id,text\n1,"one" more\n2,two\n',
        "latin.txt": "caf\xe9".encode("latin-1"),
        "wide.txt": "wide".encode("utf-16"),
        "book.txt": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
        "cut.txt.gz": gzip.compress(b"text " * 1000)[:-9],
        "table/_delta_log/00000000000000000000.json": b"{}",
        "table/a.jsonl": b'{"text": "deleted"}\n',
        "spark/lang=en/part-0.tsv": b"id\ttext\n1\tone\n",
        "spark/_committed_1": b"{}",
        "odd\nname.txt": b"text",
        "part-00000": b"id,text\n1,one\n2\n",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    told = await dry_run(sources_of(settings, tmp_path), "raw", RunPlan())
    done = await produce(settings, topic(), sources_of(settings, tmp_path))

    assert (done.documents, done.broken) == (told.documents, told.broken) == (11, 3)
    assert (done.bytes, done.refused) == (told.bytes, told.refused)
    assert sorted(done.examples) == sorted(told.examples)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_as_asked(
    settings: Settings, broker: Broker, topic: TopicFactory, tmp_path: Path, codec: str
) -> None:
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 3000)
    await produce(settings, raw, sources_of(settings, tmp_path), RunPlan(compression=codec))
    assert await content_of(settings, raw, 1) == [[(None, line) for line in lines]]
    (log,) = (broker.directory / "data" / f"{raw}-0").glob("*.log")
    assert len(log.read_bytes().rstrip(b"\0")) < sum(map(len, lines)) / 2


def plan_of(topic: str, *paths: Path, **options: Any) -> tuple[list[DocumentSource], RunPlan]:
    names = [str(path) for path in paths]
    return find_sources(names, reading_of()), RunPlan(identity=run_identity(topic, {}, names), **options)


async def produced(settings: Settings, topic: str, *paths: Path, **options: Any) -> Summary:
    sources, plan = plan_of(topic, *paths, **options)
    return await produce(settings, topic, sources, plan)


async def test_a_run_goes_on_behind_what_was_sent(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """In rounds of 3, each of which begins where a hash of its number says; all again only on purpose."""
    raw, path = topic(3), tmp_path / "a.jsonl"
    lines = jsonl(path, 5000)
    expected = dealt(lines, 3)
    for limit, counts in ((1234, (0, 1234)), (None, (1234, 3766)), (None, (5000, 0))):
        summary = await produced(settings, raw, path, limit=limit)
        assert (summary.before, summary.documents) == counts
        async with admin(settings) as client:  # of a consumer group others would think that it lags
            assert [name for name, *_ in await client.list_consumer_groups() if ".produce." in name] == []
    assert await content_of(settings, raw, 3) == expected

    (sources, plan), reports = plan_of(raw, path, restart=True), list[int]()
    again = await produce(settings, raw, sources, plan, lambda now: reports.append(now.documents))
    assert again.documents == reports[-1] == 5000
    assert sorted(sent.documents for sent in again.partitions.values()) == [1666, 1667, 1667]
    assert again.bytes == sum(map(len, lines))
    assert await content_of(settings, raw, 3) == [[*part, *part] for part in expected]
    after = await produced(settings, raw, path)
    assert (after.before, after.documents) == (5000, 0)


async def test_a_changed_source_is_refused(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 10)
    await produced(settings, raw, tmp_path, limit=5)

    jsonl(tmp_path / "b.jsonl", 10)
    with pytest.raises(InputError, match=r"have changed: .*b\.jsonl is new\. --only-new .*--restart"):
        await produced(settings, raw, tmp_path)
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:3], lines[3].upper(), *lines[4:]]))
    with pytest.raises(InputError, match=r"a\.jsonl has changed \(\d+ bytes then, \d+ now\): its content is another"):
        await produced(settings, raw, tmp_path)
    with pytest.raises(InputError, match=r"interrupted, .*a\.jsonl has changed"):
        await produced(settings, raw, tmp_path, only_new=True)
    assert len((await content_of(settings, raw, 1))[0]) == 5

    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert (await produced(settings, raw, tmp_path)).documents == 5
    assert (await produced(settings, raw, tmp_path, restart=True)).documents == 10


async def test_what_is_new_is_sent_on_request(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic(2)
    for name in "abcd":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}1"}}\n')
    await produced(settings, raw, tmp_path, limit=2)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "a2"}\n{"text": "a3, which nobody has end')
    (tmp_path / "e.jsonl").write_text('{"text": "e1"}\n')

    first = await produced(settings, raw, tmp_path, only_new=True)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('ed"}\n')
    (tmp_path / "d.jsonl").write_text('{"text": "another"}\n')
    (tmp_path / "b.jsonl").rename(tmp_path / "f.jsonl")
    (tmp_path / "c.jsonl").unlink()
    second = await produced(settings, raw, tmp_path, only_new=True)
    third = await produced(settings, raw, tmp_path, only_new=True)

    assert [(one.before, one.documents) for one in (first, second, third)] == [(2, 4), (6, 1), (7, 0)]
    assert [change.kind for change in second.left_out] == ["changed", "renamed", "gone"]
    texts = [[json.loads(value or b"")["text"] for _, value in part] for part in await content_of(settings, raw, 2)]
    in_order = [b"a1", b"b1", b"c1", b"d1", b"a2", b"e1", b"a3, which nobody has ended"]
    assert texts == [[value.decode() for _, value in part] for part in dealt(in_order, 2)]


async def test_a_run_keeps_its_partitions(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """A partition that is added meanwhile gets nothing of it, for it is not known what it would have got."""
    raw = topic(2)
    lines = jsonl(tmp_path / "a.jsonl", 100)
    await produced(settings, raw, tmp_path, limit=50)
    async with admin(settings) as client:
        await client.create_partitions({raw: NewPartitions(3)})
    while await partition_count(settings, raw) < 3:  # noqa: ASYNC110 - Kafka tells nobody; one has to ask
        await asyncio.sleep(0.05)
    await produced(settings, raw, tmp_path)
    assert await content_of(settings, raw, 3) == [*dealt(lines, 2), []]


async def test_a_run_that_a_bad_line_ended_goes_on(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic()
    lines = jsonl(tmp_path / "a.jsonl", 10)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:4], b"[]", *lines[4:]]))
    with pytest.raises(InputError, match=r"a\.jsonl:5: not_an_object.* same command with --on-error skip .*goes on"):
        await produced(settings, raw, tmp_path, on_error="fail")
    summary = await produced(settings, raw, tmp_path, on_error="skip")
    assert (summary.before, summary.documents, summary.refused) == (4, 6, 1)
    assert await content_of(settings, raw, 1) == [[(None, line) for line in lines]]


async def test_a_later_call_takes_the_run_over(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """The one before can write nothing any more and ends, whatever it had on its way; each document is there once."""
    raw = topic(2)
    lines = jsonl(tmp_path / "a.jsonl", 3000)
    sources, slow = plan_of(raw, tmp_path, rate=sum(map(len, lines)) / 20)
    started = asyncio.Event()
    first = asyncio.create_task(
        produce(settings, raw, sources, slow, lambda now: started.set() if now.documents else None)
    )
    await started.wait()

    second = await produced(settings, raw, tmp_path)

    with pytest.raises(InputError, match="has taken over"):
        await first
    assert second.before > 0
    assert await content_of(settings, raw, 2) == dealt(lines, 2)


async def test_a_broker_that_is_away_at_the_end_of_a_run_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is acknowledged by then: the run does not fail for the note of it."""
    ends, note = AsyncMock(side_effect=[BrokerError("no broker answers")] * 2 + [{0: 7}]), AsyncMock()
    monkeypatch.setattr(run_notes, "partition_ends", ends)
    monkeypatch.setattr(clients, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(run_notes, "settle_note", note)
    client: Any = None
    run_start = RunStart(1, {0: 0}, ())
    await Resuming(Settings(), client, "raw", "run", []).settle(run_start, {0: 6}, NOTHING_BEFORE)
    assert [call.args[1] for call in ends.await_args_list] == ["raw"] * 3
    settled = run_start._replace(run_end=RunEnd({0: 6}, {0: 7}, NOTHING_BEFORE))
    assert [call.args[3] for call in note.await_args_list] == [settled]


def test_a_flush_that_would_be_a_tombstone_is_refused(broker: Broker, topic: TopicFactory) -> None:
    """By the settings; and by what the streams were settled with, whatever the settings here say, as long as all do."""
    raw = topic(2)
    settings = Settings(
        bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,), tokenizer="bytes", splits={"train": 1000}
    )
    refusing = settings.model_copy(update={"topic": {raw: {"allow_flush": False}}})
    with pytest.raises(SettingsError, match=f"allow_flush = false for {raw}"):
        in_own_loop(lambda: flush(refusing, raw))
    in_own_loop(lambda: ensure_topics(settings))
    settle_streams(settings.model_copy(update={"allow_flush": False}))
    elsewhere = settings.model_copy(update={"raw_topics": ("another-topic",)})
    with pytest.raises(SettingsError, match=f"the streams of {raw} were settled with allow_flush = false"):
        in_own_loop(lambda: flush(elsewhere, raw))
    assert raw_records(settings, raw) == [[], []]

    again = settings.model_copy(update={"allow_flush": True, "stream_suffix": "-v2"})
    in_own_loop(lambda: ensure_topics(again))
    settle_streams(again)
    assert in_own_loop(lambda: flush(elsewhere, raw)) == 2
    found = [[(r.key, r.value, list(r.headers)) for r in records] for records in raw_records(settings, raw)]
    assert found == [[(None, None, [FLUSH_HEADER])]] * 2, "each partition has one, behind all documents"


def test_produce_refuses_to_flush_before_it_sends_anything(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    raw = topic()
    (tmp_path / "a.txt").write_text("a text")
    place = ["--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", raw, "--allow-flush", "false"]
    command = ["produce", raw, str(tmp_path / "a.txt"), *place]
    assert f"allow_flush = false for {raw}" in invoke(*command, "--flush", code=2).err
    assert "wait until their block is full; more text fills it" in invoke(*command, code=0).err
