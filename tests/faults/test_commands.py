"""`tokenmill produce` and `tokenmill pack` are killed again and again: it ends as if nobody had killed them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from confluent_kafka import Producer

from tests import commands
from tests.app.sources.files import WRITERS, as_lines, write_jsonl
from tests.app.tools.pack.packing import content, require_equal, rows
from tests.conftest import TopicFactory
from tests.faults.oracle import read_letters, read_topic, watermarks
from tests.faults.trial import Trial
from tests.service import in_own_loop
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.errors import DiskError

pytestmark = pytest.mark.needs("minutes")

PARTITIONS = 3
ROWS = 900  # in each file: several chunks of the larger ones, at the rate below some ten seconds in all
LONG_ROWS = 6000  # in a file of lines alone, so that it has several chunks; of some 650 bytes each
FOREIGN = b"from somebody else"
WAIT_SECONDS = 240


def corpus(folder: Path, rng: random.Random) -> list[Path]:
    """Write a file of every format, and one of lines, with documents of very different lengths."""
    folder.mkdir()
    for name, write in WRITERS.items():
        write(folder / name, [row(f"{name}-{number}", rng) for number in range(ROWS)])
    (folder / "l.txt").write_text("".join(f"line {number} " * rng.randrange(1, 60) + "\n" for number in range(ROWS)))
    return sorted(folder.iterdir())


def row(name: str, rng: random.Random) -> dict[str, str]:
    return {"id": name, "text": f"text of {name}, é " * rng.randrange(1, 60), "lang": rng.choice("ab")}


def length(settings: Settings, topic: str) -> int:
    return sum(watermarks(settings, topic, partition)[1] for partition in range(PARTITIONS))


def documents(settings: Settings, topic: str) -> list[list[bytes]]:
    """Return the values in each partition, but those of others."""
    logs = (read_topic(settings, topic, partition) for partition in range(PARTITIONS))
    return [[kept.value or b"" for kept in log if kept.value != FOREIGN] for log in logs]


def disturb(settings: Settings, topic: str, count: int) -> None:
    client = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for number in range(count):
        client.produce(topic, FOREIGN, partition=number % PARTITIONS)
        client.poll(0)
    client.flush()


def produce(settings: Settings, topic: str, arguments: Sequence[str]) -> list[str]:
    servers = ["--bootstrap-servers", settings.bootstrap_servers]
    return ["produce", topic, *arguments, *servers, "--max-id-bytes", "1000"]


def run(settings: Settings, topic: str, arguments: Sequence[str], log: Path) -> str:
    """Run a produce to its end, which must be a good one; return what it said."""
    ended = commands.run(produce(settings, topic, arguments), log, {})
    assert ended.code == 0, ended.said
    return ended.said


def kill_again_and_again(
    settings: Settings, topic: str, arguments: Sequence[str], trial: Trial, count: int, *, log: Path
) -> None:
    """Kill the starts of a run of ``count`` documents, others' records between; note those that were under way."""
    kills = trial.rounds(3, 16)
    for _ in range(kills):
        wanted = length(settings, topic) + trial.rng.randrange(1, count // (kills + 1))
        process = commands.command(produce(settings, topic, arguments), log, {})
        deadline = time.monotonic() + WAIT_SECONDS
        try:
            while length(settings, topic) < wanted and process.poll() is None:
                assert time.monotonic() < deadline, process.said
                time.sleep(0.005)
        finally:
            process.kill()
        if process.wait(WAIT_SECONDS) == -signal.SIGKILL:
            trial.fired("produce SIGKILL")
        disturb(settings, topic, trial.rng.randrange(0, 4000))


@pytest.mark.fault("produce-killed")
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
    quiet, raw, log = topic(PARTITIONS), topic(PARTITIONS), tmp_path / "log"
    settings = Settings(bootstrap_servers=broker.bootstrap_servers)
    run(settings, quiet, [*paths, *options], log)
    expected = documents(settings, quiet)

    count = sum(map(len, expected))
    kill_again_and_again(settings, raw, [*paths, *options, "--rate", "800kB"], trial, count, log=log)
    said = run(settings, raw, [*paths, *options], log)

    assert "of this run were in" in said
    assert trial.faults["produce SIGKILL"] >= 2
    assert documents(settings, raw) == expected
    names = [json.loads(value)["id"] for values in expected for value in values]
    chosen = "--where" in options
    assert len(names) == len(set(names))
    assert len(names) == (len(WRITERS) + 1) * ROWS or (chosen and len(names) > ROWS)
    trial.held("exact", "complete", documents_produced=len(names))


@pytest.mark.fault("produce-killed")
def test_each_bad_line_is_a_dead_letter_though_produce_is_killed(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """At least once, whole; the documents between are there once, and the last call has counted all bad lines."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lines = [as_lines([row(f"{number}", trial.rng)]) for number in range(LONG_ROWS)]
    broken = {number for number in range(LONG_ROWS) if trial.rng.random() < 0.05}
    mixed = [line[: len(line) // 2] + b"\n" if number in broken else line for number, line in enumerate(lines)]
    good.write_bytes(b"".join(line for number, line in enumerate(lines) if number not in broken))
    bad.write_bytes(b"".join(mixed))
    quiet, raw, log = topic(PARTITIONS), topic(PARTITIONS), tmp_path / "log"
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,))
    in_own_loop(lambda: ensure_topics(settings))
    run(settings, quiet, [str(good)], log)

    arguments = [str(bad), "--on-error", "dead-letter"]
    rate = f"{sum(map(len, lines)) // 10}"  # ten seconds in all, so that kills come in time on a busy machine, too
    kill_again_and_again(settings, raw, [*arguments, "--rate", rate], trial, LONG_ROWS, log=log)
    said = run(settings, raw, [*arguments, "--json"], log)

    assert trial.faults["produce SIGKILL"] >= 2
    assert documents(settings, raw) == documents(settings, quiet)
    assert {letter.value for letter in read_letters(settings, raw)} == {mixed[number][:-1] for number in broken}
    assert json.loads(said.splitlines()[-1])["refused"] == len(broken)
    trial.held("exact", "complete", "dead letters", documents_produced=LONG_ROWS - len(broken))


OFTEN: Final = """
import sys
from tokenmill.app.tools.pack import packing_run, parted_sources

packing_run.COMMIT_SECONDS, parted_sources.PART_BYTES = 0.0, 1 << 16
from tokenmill.app.cli import main

main(sys.argv[1:])
"""
"""The command, with a commit after each chunk, so that there is something to lose."""


def files_to_pack(folder: Path) -> Path:
    """Write a file of every format, and large ones; return the folder."""
    folder.mkdir()
    for seed, (name, write) in enumerate(WRITERS.items()):
        write(folder / name, rows(60, seed))
    for seed in (50, 51):
        write_jsonl(folder / f"large-{seed}.jsonl", rows(1500, seed, words=120))
    (folder / "bad.jsonl").write_bytes(b'{"text": "a"}\nno JSON\n')
    return folder


PACKINGS: Final = (
    "concat",
    '{"name": "fit", "open_blocks": 8, "max_age_offsets": 300}',
    '{"name": "rows", "long": "split"}',
    '{"name": "chunks", "chunk_tokens": 126, "rest": "pad"}',
)


def started(
    folder: Path, store: Path, log: Path, *, packing: str = "concat", limit: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start the command; no file may be larger than a ``limit``."""
    command = ["prlimit", f"--fsize={limit}"] if limit is not None else []
    command += [sys.executable, "-c", OFTEN, "pack", str(folder), "--store", str(store), "--tokenizer", "bytes"]
    sizes = {"sequence-length": 63, "segment-blocks": 500, "era-blocks": 2000, "partitions": 3, "processes": 2}
    command += [f"--{name}={size}" for name, size in sizes.items()]
    command += ["--packing", packing, "--on-error", "dead-letter", "--flush", "--end", "--json"]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)


def finished(process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    """Wait for the end of a call that nobody kills, and return what it said."""
    assert process.wait(WAIT_SECONDS) == 0, log.read_text()
    found: dict[str, Any] = json.loads([line for line in log.read_text().splitlines() if line.startswith("{")][-1])
    return found


def size(store: Path) -> int:
    found = 0
    for directory, _, names in os.walk(store):
        for name in names:
            with suppress(FileNotFoundError):
                found += (Path(directory) / name).stat().st_size
    return found


def kill_at_work(process: "subprocess.Popen[bytes]", store: Path, trial: Trial, most: int) -> bool:
    """Kill the call, or one of its processes, when the store has grown to a random size; return whether it worked."""
    wanted = trial.rng.randrange(most)
    deadline = time.monotonic() + trial.rng.choice([1.0, 10.0])  # sometimes before it has begun
    while process.poll() is None and size(store) < wanted and time.monotonic() < deadline:
        time.sleep(0.002)
    children = psutil.Process(process.pid).children() if process.poll() is None else []
    millers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    try:
        (trial.rng.choice(millers) if millers and trial.rng.random() < 0.25 else process).kill()
    except psutil.NoSuchProcess:
        process.kill()
    return process.wait(WAIT_SECONDS) in (-signal.SIGKILL, 1)


@pytest.mark.fault("pack-killed")
def test_killed_packs_make_the_store_of_one_that_was_not(tmp_path: Path, trial: Trial) -> None:
    """Segments, eras, letters and totals, whatever was killed when, in a random packing."""
    packing = trial.rng.choice(PACKINGS)
    folder, log = files_to_pack(tmp_path / "in"), tmp_path / "log"
    whole = tmp_path / "whole"
    wanted = finished(started(folder, whole, log, packing=packing), log)
    most = size(whole)
    stores = 0
    while trial.faults["pack SIGKILL"] < trial.rounds(2, 100):
        store = tmp_path / f"store-{stores}"
        stores += 1
        for _ in range(trial.rng.randint(2, trial.rounds(3, 12))):
            if kill_at_work(started(folder, store, log, packing=packing), store, trial, most):
                trial.fired("pack SIGKILL")
        log.unlink()
        found = finished(started(folder, store, log, packing=packing), log)
        require_equal(content(store, eras=True), content(whole, eras=True))
        require_equal(letters(store), letters(whole))
        assert found["streams"] == wanted["streams"]
        assert found["refused"] == wanted["refused"] > 0
    blocks = sum(stream["blocks"] for stream in wanted["streams"].values())
    trial.held("exact", "complete", "conserved", "dead letters", blocks=blocks * stores)


def letters(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "pack" / "raw-text").glob("*.jsonl")}


@pytest.mark.fault("disk-full")
def test_a_full_disk_ends_a_pack_and_the_next_call_goes_on(tmp_path: Path, trial: Trial) -> None:
    """A file that may not grow is what a full disk is: the call names it, and what was committed stays."""
    folder, log = files_to_pack(tmp_path / "in"), tmp_path / "log"
    whole, store = tmp_path / "whole", tmp_path / "store"
    finished(started(folder, whole, log), log)
    for limit in trial.rng.sample([500, 5_000, 20_000, 30_000], trial.rounds(2, 4)):
        log.unlink()
        assert started(folder, store, log, limit=limit).wait(WAIT_SECONDS) == DiskError.exit_code, log.read_text()
        assert "cannot be used (File too large); what was committed is kept" in log.read_text()
        trial.fired("EFBIG")
    log.unlink()
    finished(started(folder, store, log), log)
    require_equal(content(store, eras=True), content(whole, eras=True))
    trial.held("exact", "complete", "loud")
