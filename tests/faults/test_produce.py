"""`tokenmill produce` is killed again and again; in the end each document is in the topic, once, in order."""

import json
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from tests import commands
from tests.app.sources.files import WRITERS, as_lines
from tests.commands import Command, command
from tests.conftest import TopicFactory
from tests.faults.oracle import new_reader, read_letters, read_topic
from tests.faults.trial import Trial
from tests.service import in_own_loop
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

pytestmark = [pytest.mark.fault("produce-killed"), pytest.mark.needs("minutes")]

PARTITIONS = 3
ROWS = 900
"""In each file: several chunks of the larger ones, at the rate below some ten seconds in all."""
RATE = "800kB"
LONG_ROWS = 6000
"""In a file of lines alone, so that it has several chunks; of some 650 bytes each."""
BAD_SHARE = 0.05
FOREIGN = b"from somebody else"
WAIT_SECONDS = 60


def corpus(folder: Path, rng: random.Random) -> list[Path]:
    """Write a file of every format, and one of lines, with documents of very different lengths."""
    folder.mkdir()
    for name, write in WRITERS.items():
        write(folder / name, [row(f"{name}-{number}", rng) for number in range(ROWS)])
    (folder / "l.txt").write_text("".join(f"line {number} " * rng.randrange(1, 60) + "\n" for number in range(ROWS)))
    return sorted(folder.iterdir())


def row(name: str, rng: random.Random) -> dict[str, str]:
    """Return a document whose fields are in all of them."""
    return {"id": name, "text": f"text of {name}, é " * rng.randrange(1, 60), "lang": rng.choice("ab")}


class Topic:
    """A raw topic, as another client sees it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._settings = Settings(bootstrap_servers=broker.bootstrap_servers)
        self._reader = new_reader(broker.bootstrap_servers)

    def length(self) -> int:
        """Return how many records there are, markers included."""
        ends = (self._reader.get_watermark_offsets(TopicPartition(self.name, p), 10)[1] for p in range(PARTITIONS))
        return sum(ends)

    def disturb(self, count: int) -> None:
        """Write to it as another producer does."""
        producer = Producer({"bootstrap.servers": self._settings.bootstrap_servers})
        for number in range(count):
            producer.produce(self.name, FOREIGN, partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush()

    def documents(self) -> list[list[bytes]]:
        """Return the values in each partition, but those of others."""
        logs = (read_topic(self._settings, self.name, number, self._reader) for number in range(PARTITIONS))
        return [[kept.value or b"" for kept in log if kept.value != FOREIGN] for log in logs]


def produce(broker: Broker, topic: str, arguments: Sequence[str]) -> list[str]:
    """Return the words of a produce."""
    return ["produce", topic, *arguments, "--bootstrap-servers", broker.bootstrap_servers, "--max-id-bytes", "1000"]


def run(broker: Broker, topic: str, arguments: Sequence[str], log: Path) -> str:
    """Run a produce to its end, which must be a good one; return what it said."""
    ended = commands.run(produce(broker, topic, arguments), log, {})
    assert ended.code == 0, ended.said
    return ended.said


def wait_for(topic: Topic, length: int, process: Command) -> None:
    """Wait until there are so many records, or the process ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while topic.length() < length and process.poll() is None:
        assert time.monotonic() < deadline, process.said
        time.sleep(0.005)


def kill_again_and_again(
    broker: Broker, raw: Topic, arguments: Sequence[str], trial: Trial, count: int, *, log: Path
) -> None:
    """Kill the starts of a run of ``count`` documents, others' records between; note those that were under way."""
    kills = trial.rounds(3, 16)
    for _ in range(kills):
        before = raw.length()
        process = command(produce(broker, raw.name, arguments), log, {})
        try:
            wait_for(raw, before + trial.rng.randrange(1, count // (kills + 1)), process)
        finally:
            process.kill()
        if process.wait(WAIT_SECONDS) == -signal.SIGKILL:
            trial.fired("produce SIGKILL")
        raw.disturb(trial.rng.randrange(0, 4000))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="as they come"),
        pytest.param(["--shuffle-buffer", "300", "--seed", "7", "--compression", "lz4"], id="shuffled"),
        pytest.param(["--key", "lang", "--where", "lang=a", "--metadata-fields", "lang"], id="keyed and chosen"),
    ],
)
def test_each_document_arrives_once_though_produce_is_killed(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial, options: list[str]
) -> None:
    """Files of every format at once; each partition ends up as if nothing had happened, others' records between."""
    paths = [*map(str, corpus(tmp_path / "in", trial.rng)), "--lines"]
    quiet, raw = Topic(broker, topic(PARTITIONS)), Topic(broker, topic(PARTITIONS))
    log = tmp_path / "log"
    run(broker, quiet.name, [*paths, *options], log)
    expected = quiet.documents()
    count = sum(map(len, expected))

    kill_again_and_again(broker, raw, [*paths, *options, "--rate", RATE], trial, count, log=log)
    said = run(broker, raw.name, [*paths, *options], log)

    assert "of this run were in" in said
    assert trial.faults["produce SIGKILL"] >= 2
    assert raw.documents() == expected
    names = [json.loads(value)["id"] for values in expected for value in values]
    chosen = "--where" in options
    assert len(names) == len(set(names))
    assert len(names) == (len(WRITERS) + 1) * ROWS or (chosen and len(names) > ROWS)
    trial.held("exact", "complete", documents_produced=len(names))


def test_each_bad_line_is_a_dead_letter_though_produce_is_killed(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """At least once, whole; the documents between are there once, and the last call has counted all bad lines."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    rng = trial.rng
    lines = [as_lines([row(f"{number}", rng)]) for number in range(LONG_ROWS)]
    mixed = [(line[: len(line) // 2] + b"\n", True) if rng.random() < BAD_SHARE else (line, False) for line in lines]
    good.write_bytes(b"".join(line for line, is_bad in mixed if not is_bad))
    bad.write_bytes(b"".join(line for line, _ in mixed))
    wanted = {line[:-1] for line, is_bad in mixed if is_bad}
    quiet, raw = Topic(broker, topic(PARTITIONS)), Topic(broker, topic(PARTITIONS))
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw.name,))
    in_own_loop(lambda: ensure_topics(settings))
    log = tmp_path / "log"
    run(broker, quiet.name, [str(good)], log)

    arguments = [str(bad), "--on-error", "dead-letter"]
    rate = f"{sum(map(len, lines)) // 10}"  # ten seconds in all, so that kills come in time on a busy machine, too
    kill_again_and_again(broker, raw, [*arguments, "--rate", rate], trial, LONG_ROWS, log=log)
    said = run(broker, raw.name, [*arguments, "--json"], log)

    assert trial.faults["produce SIGKILL"] >= 2
    raw_documents = raw.documents()
    assert raw_documents == quiet.documents()
    assert {letter.value for letter in read_letters(settings, raw.name)} == wanted
    assert json.loads(said.splitlines()[-1])["refused"] == len(wanted)
    trial.held("exact", "complete", "dead letters", documents_produced=sum(map(len, raw_documents)))
