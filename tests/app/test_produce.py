"""Produce: what lies in files arrives in the raw topic, once, in order; what cannot is named."""

import asyncio
import io
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import TopicFactory
from tokenmill.app.broker import Broker
from tokenmill.app.kafka import consumer, offsets, read_range
from tokenmill.app.produce import Item, Plan, Refused, flush, options_for, produce, read_sources
from tokenmill.app.produce.items import fit_id
from tokenmill.app.produce.lines import read_lines
from tokenmill.app.produce.sources import Choice
from tokenmill.app.settings import Settings
from tokenmill.app.topics import ensure_topics
from tokenmill.errors import InputError, TopicError
from tokenmill.records import FLUSH_HEADER

Content = list[tuple[bytes | None, bytes | None]]
"""Keys and values of one partition's records."""


async def content_of(settings: Settings, topic: str, partitions: int) -> list[Content]:
    """Return what every partition of the topic holds."""
    found: list[Content] = []
    async with consumer(settings) as client:
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            start, end = (await offsets(client, [partition]))[partition]
            found.append([(record.key, record.value) async for record in read_range(client, partition, start, end)])
    return found


def items_of(settings: Settings, *paths: Path, choice: Choice = "auto", plain: bool = False) -> list[Item | Refused]:
    """Return what the sources yield."""
    return list(read_sources([str(path) for path in paths], options_for(settings, "raw", plain=plain), choice))


@pytest.fixture
def settings(broker: Broker) -> Settings:
    """Return settings for the broker."""
    return Settings(bootstrap_servers=broker.bootstrap_servers)


def jsonl(path: Path, count: int) -> list[bytes]:
    """Write so many documents to a file and return its lines."""
    lines = [json.dumps({"id": str(number), "text": f"text {number} " * 9}).encode() for number in range(count)]
    path.write_bytes(b"\n".join(lines))
    return lines


async def test_documents_are_spread_evenly_and_in_order(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """The n-th document goes to partition n modulo 3, byte for byte, and the summary says how many went where."""
    raw = topic(3)
    lines = jsonl(tmp_path / "a.jsonl", 2000)
    reports: list[int] = []

    summary = await produce(
        settings, raw, items_of(settings, tmp_path / "a.jsonl"), progress=lambda now: reports.append(now.documents)
    )

    found = await content_of(settings, raw, 3)
    assert found == [[(None, line) for line in lines[number::3]] for number in range(3)]
    assert [sent.documents for sent in summary.partitions.values()] == [667, 667, 666]
    assert summary.bytes == sum(map(len, lines))
    assert reports[-1] == 2000


async def test_equal_keys_share_a_partition(settings: Settings, topic: TopicFactory, tmp_path: Path) -> None:
    """With a key the partition is the one that Kafka's own clients choose; a document without one is refused."""
    raw = topic(4)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number % 5}, "text": "{number}"}}\n' for number in range(20)) + '{"text": "z"}')

    summary = await produce(settings, raw, items_of(settings, path), Plan(key="id"))

    found = await content_of(settings, raw, 4)
    for key in (b"0", b"1", b"2", b"3", b"4"):
        assert [sum(k == key for k, _ in records) for records in found if any(k == key for k, _ in records)] == [4]
    assert [refused.why for refused in summary.examples] == ["no field 'id' for the key"]


async def test_limit_and_failure_end_a_run_with_all_before_acknowledged(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """A run that ends early has sent exactly what came before its end."""
    first, second = topic(), topic()
    lines = jsonl(tmp_path / "a.jsonl", 30)
    (tmp_path / "b.jsonl").write_bytes(lines[0] + b"\n[]\n" + lines[1])

    await produce(settings, first, items_of(settings, tmp_path / "a.jsonl"), Plan(limit=7))
    with pytest.raises(InputError, match=r"b\.jsonl:2: not_an_object.*--on-error skip"):
        await produce(settings, second, items_of(settings, tmp_path / "b.jsonl"), Plan(fail=True))

    assert await content_of(settings, first, 1) == [[(None, line) for line in lines[:7]]]
    assert await content_of(settings, second, 1) == [[(None, lines[0])]]


async def test_records_that_the_topic_refuses_end_the_run(
    settings: Settings, topic: TopicFactory, tmp_path: Path
) -> None:
    """A topic whose limit is below a record's size is named, with what to do."""
    path = tmp_path / "a.txt"
    path.write_text("word " * 1000)

    with pytest.raises(TopicError, match=r"raise its max\.message\.bytes"):
        await produce(settings, topic(max_message_bytes=2000), items_of(settings, path))
    with pytest.raises(TopicError, match="does not exist"):
        await produce(settings, "no-such-topic", items_of(settings, path))


async def test_flush_reaches_every_partition(settings: Settings, topic: TopicFactory) -> None:
    """One record without key and value stands behind all documents of each partition, and its header says flush."""
    raw = topic(2)
    assert await flush(settings, raw) == 2

    async with consumer(settings) as client:
        for number in range(2):
            records = [record async for record in read_range(client, TopicPartition(raw, number), 0, 1)]
            assert [(r.key, r.value, r.headers) for r in records] == [(None, None, (FLUSH_HEADER,))]


def test_each_file_of_a_folder_is_a_document(tmp_path: Path) -> None:
    """Folders are read by name, recursively; what is no text is named and harms nothing else."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").write_text("no")
    (folder / "deep" / "z.py").write_text("print(1)\n")
    (folder / "a.md").write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe")
    (folder / "b.bin").write_bytes(b"\0\1")
    (folder / "c.txt").write_bytes(b"\xff\xfe")
    (folder / "d.txt").write_bytes(b"")
    (folder / "e.txt").symlink_to("nowhere")
    os.mkfifo(folder / "f.txt")

    found = items_of(Settings(max_id_bytes=1000), folder)

    documents = [json.loads(item.value) for item in found if isinstance(item, Item)]
    assert documents == [
        {"id": str(folder / "a.md"), "text": "grüße"},
        {"id": str(folder / "deep" / "z.py"), "text": "print(1)\n"},
    ]
    assert [(Path(item.where).name, item.why) for item in found if isinstance(item, Refused)] == [
        ("b.bin", "not text: it holds NUL bytes"),
        ("c.txt", "not UTF-8: invalid start byte at byte 0"),
        ("e.txt", "cannot be read: No such file or directory"),
    ]


def test_lines_can_be_documents_and_texts_can_go_plain(tmp_path: Path) -> None:
    """``lines`` gives each line an id of its own; ``plain`` sends the text and nothing else."""
    path = tmp_path / "a.txt"
    path.write_text("one\r\n\n \ntwo")
    settings = Settings(max_id_bytes=1000)

    lines = items_of(settings, path, choice="lines")
    assert [item.value for item in lines if isinstance(item, Item)] == [
        json.dumps({"id": f"{path}:{number}", "text": text}, separators=(",", ":")).encode()
        for number, text in ((1, "one"), (4, "two"))
    ]
    plain = items_of(settings, path, choice="lines", plain=True)
    assert [item.value for item in plain if isinstance(item, Item)] == [b"one", b"two"]


def test_topics_that_decode_text_get_text(tmp_path: Path) -> None:
    """Where the mill would tokenize a JSON object as it stands, none is sent."""
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}')

    found = items_of(Settings(decode="text"), tmp_path)

    assert [item.value for item in found if isinstance(item, Item)] == [b"one", b"two"]


def test_what_is_too_long_is_refused_and_the_rest_is_read(tmp_path: Path) -> None:
    """A line or file over the limit is named; the lines behind it are documents as ever."""
    limit = 64
    (tmp_path / "a.jsonl").write_text('{"text": "' + "x" * 200 + '"}\n{"text": "y"}\n' + "z" * 100)
    (tmp_path / "b.txt").write_text("w" * 65)
    (tmp_path / "c.txt").write_text('"' * 60)  # short enough, but not as JSON

    found = items_of(Settings(max_record_bytes=limit), tmp_path)

    assert [item.value for item in found if isinstance(item, Item)] == [b'{"text": "y"}']
    assert [Path(item.where).name for item in found if isinstance(item, Refused)] == [
        "a.jsonl:1",
        "a.jsonl:3",
        "b.txt",
        "c.txt",
    ]


def test_paths_that_do_not_exist_are_named_before_anything_is_read(tmp_path: Path) -> None:
    """A misspelt path among many sends nothing."""
    (tmp_path / "a.txt").write_text("one")

    with pytest.raises(InputError, match=r"there is no file or folder .*none"):
        read_sources([str(tmp_path / "a.txt"), str(tmp_path / "none")], options_for(Settings(), "raw"))


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
def test_lines_are_found_whatever_their_length(lines: list[bytes], limit: int) -> None:
    """Every line up to the limit is read as it is, and every longer one is named, by its number."""
    whole = b"\n".join(lines)
    expected = [
        (number, b"" if len(body) > limit else body)
        for number, line in enumerate(whole.split(b"\n"), start=1)
        for body in (line.rstrip(b"\r"),)
        if body.strip() or len(body) > limit
    ]

    found = [(line.number, line.data) for line in read_lines(io.BytesIO(whole), limit)]

    assert found == expected


@given(name=st.text(), limit=st.integers(3, 40))
def test_ids_fit_and_keep_their_end(name: str, limit: int) -> None:
    """Any name becomes an id within the limit; one that fits stays as it is."""
    found = fit_id(name, limit)

    assert len(json.dumps(found, ensure_ascii=False).encode()) - 2 <= limit or len(found) <= 1
    assert found == name or name.endswith(found.removeprefix("…"))


async def test_slow_pipes_are_sent_as_they_come(settings: Settings, topic: TopicFactory) -> None:
    """A document from a pipe is in Kafka before the next one comes; Ctrl-C ends the run with exit code 130."""
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
    await process.communicate()

    assert process.returncode == 130
    assert await content_of(settings, raw, 1) == [[(None, b"first"), (None, b"second")]]


async def test_each_document_arrives_once_though_the_broker_is_killed(tmp_path: Path) -> None:
    """The broker dies in the middle of a run and comes back; order and number are as if it had not."""
    broker = Broker(tmp_path / "broker")
    await asyncio.to_thread(broker.start)
    try:
        settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=("raw",))
        await ensure_topics(settings, partitions=2)
        lines = jsonl(tmp_path / "a.jsonl", 20_000)
        size = sum(map(len, lines))
        acknowledged = asyncio.Event()
        # Three seconds' worth, and the kill as soon as something has arrived: well before the end.
        run = asyncio.create_task(
            produce(
                settings,
                "raw",
                items_of(settings, tmp_path / "a.jsonl"),
                Plan(rate=size / 3),
                lambda now: acknowledged.set() if now.documents else None,
            )
        )
        await acknowledged.wait()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        summary = await run

        assert summary.documents == 20_000
        assert await content_of(settings, "raw", 2) == [
            [(None, line) for line in lines[number::2]] for number in (0, 1)
        ]
    finally:
        await asyncio.to_thread(broker.stop)
