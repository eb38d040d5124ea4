"""`--map`: a function of one's own on every row."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore

import pytest

from tests.app.produce.files import write_csv, write_gzip, write_jsonl
from tests.app.produce.reading import found_in, reading_of, refusals, values
from tokenmill.app.produce import Item, Refused, find_sources, read_items
from tokenmill.app.produce.ahead import AHEAD_BYTES
from tokenmill.app.produce.formats import Entry, Text
from tokenmill.app.produce.mapping import BATCH, BATCH_BYTES, Mapping
from tokenmill.errors import InputError

SHOUT = "tests.app.produce.maps:shout"
PATIENCE_SECONDS = 60


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    """`maps.shout` in two processes."""
    mapping = Mapping(SHOUT, processes=2)
    yield mapping
    mapping.close()


def test_rows_are_mapped_in_order_by_several_processes(mapping: Mapping, tmp_path: Path) -> None:
    """More rows than one trip takes; what the function refuses is named with its line, what it drops is not."""
    rows = [{"id": str(number), "text": f"text {number}"} for number in range(5 * BATCH)]
    rows[7]["text"], rows[8]["text"], rows[9]["text"] = "drop", "fail", "plain"
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_csv(tmp_path / "b.csv", rows[:2])
    write_gzip(tmp_path / "c.jsonl.gz", rows[:80])
    cut = (tmp_path / "c.jsonl.gz").read_bytes()
    (tmp_path / "c.jsonl.gz").write_bytes(cut[:-30])

    found = found_in(reading_of(mapping=mapping), tmp_path / "a.jsonl", tmp_path / "b.csv", tmp_path / "c.jsonl.gz")

    texts = [json.loads(value)["text"] for value in values(found)]
    expected = [row["text"].upper() for row in rows if row["text"] not in ("drop", "fail", "plain")]
    expected.insert(7, "a text")
    assert texts[: len(rows)] == [*expected, *expected[:2]]
    assert texts[len(rows) :] == expected[: len(texts) - len(rows)]
    assert len(texts) > len(rows) + 30, "what was read before the damage is there"
    assert refusals(found)[0] == ("a.jsonl:9", "--map: ValueError: not this one")
    assert refusals(found)[-1][0] == "c.jsonl.gz"


@pytest.mark.parametrize("name", ["no.such.module:f", "json:no_such", "json", "json:__doc__"])
def test_a_function_that_is_not_there_is_named(name: str) -> None:
    """Before anything is read."""
    with pytest.raises(InputError, match="--map"):
        Mapping(name)


def test_a_function_that_ends_its_process_ends_the_run_with_advice(mapping: Mapping, tmp_path: Path) -> None:
    """What came before it is there, and one is told where to look."""
    rows = [{"text": f"text {number}"} for number in range(20 * BATCH)]
    rows[15 * BATCH + 3]["text"] = "die"
    write_jsonl(tmp_path / "a.jsonl", rows)
    items = read_items(find_sources([str(tmp_path / "a.jsonl")], reading_of(mapping=mapping)))
    found: list[Item | Refused] = []
    with pytest.raises(InputError, match=rf"--map {SHOUT}: a process .* row of .*a\.jsonl behind entry \d+,"):
        found.extend(items)  # those before the error stay

    texts = [json.loads(value)["text"] for value in values(found)]
    assert texts == [f"TEXT {number}" for number in range(len(texts))]
    assert len(texts) <= 15 * BATCH
    with pytest.raises(InputError, match="behind entry 0"):  # none of its processes is left
        list(mapping.of(iter([(1, 0, Text(b"another file"))])))


def test_large_rows_are_read_a_bounded_number_of_bytes_ahead(mapping: Mapping) -> None:
    """As many as fit, be the function as slow as it may."""
    size, count = 100_000, 400
    read = taken = most = 0

    def entries() -> Iterator[Entry]:
        nonlocal read, most
        for number in range(count):
            read += size
            most = max(most, read - taken)
            yield number, 0, Text(b"x" * size)

    for _, _, content in mapping.of(entries()):
        assert content == {"text": "X" * size}
        taken += size

    assert taken == count * size
    # What waits, and beside it a batch that is read, one that is about to wait, and one that is taken.
    assert most <= AHEAD_BYTES + 3 * (BATCH_BYTES + size)


def test_piped_rows_come_before_those_behind_them_are_there(mapping: Mapping) -> None:
    """Each is there before the one behind it is."""
    taken = Semaphore(0)

    def entries() -> Iterator[Entry]:
        for number in range(5):
            yield number, 0, Text(b"%d" % number)
            if not taken.acquire(timeout=PATIENCE_SECONDS):
                raise TimeoutError

    found = []
    for _, _, content in mapping.of(entries(), piped=True):
        found.append(content)
        taken.release()

    assert found == [{"text": str(number)} for number in range(5)]


def test_a_pipe_that_stays_open_holds_nothing_up() -> None:
    """Its rows are mapped as they come, and the end of the run does not wait for another one."""
    options = ["--format", "lines", "--map", SHOUT, "--dry-run", "--limit", "2", "--json"]
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", "raw", "-", *options]
    reading, writing = os.pipe()
    try:
        os.write(writing, b"one\ntwo\nthree\n")
        done = subprocess.run(command, stdin=reading, capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    finally:
        os.close(writing)
        os.close(reading)

    samples = json.loads(done.stdout)["samples"]
    assert [json.loads(sample)["text"] for sample in samples] == ["ONE", "TWO"]
