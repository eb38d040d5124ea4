"""`--map`: a function of one's own on every row, in processes, and what it makes of them."""

import codecs
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Semaphore
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.files import WRITERS, as_lines, write_csv, write_jsonl
from tests.app.sources.maps import shout, shout_all
from tests.app.sources.reading import found_in, reading_of, refusals, values
from tests.marked import until
from tokenmill.app.sources import Item, Refused, find_sources, read_items
from tokenmill.app.sources.items import Entry, Place, Text
from tokenmill.app.sources.mapping import BATCH, BATCH_BYTES, Mapping, physical_cores
from tokenmill.app.sources.own_function import Wrong, find_function, made_of_list
from tokenmill.app.sources.reading_order import AHEAD_BYTES
from tokenmill.errors import InputError

SHOUT = "tests.app.sources.maps:shout"
LIST = "tests.app.sources.maps:shout_all"
PATIENCE_SECONDS = 60


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    mapping = Mapping(SHOUT, processes=2)
    yield mapping
    mapping.close()


@pytest.mark.slow
def test_rows_are_mapped_in_order_by_several_processes(mapping: Mapping, tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": f"text {number}"} for number in range(5 * BATCH)]
    rows[7]["text"], rows[8]["text"], rows[9]["text"], rows[10]["text"] = "drop", "fail", "plain", "panic"
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_csv(tmp_path / "b.csv", rows[:2])
    WRITERS["c.jsonl.gz"](tmp_path / "c.jsonl.gz", rows[:80])
    cut = (tmp_path / "c.jsonl.gz").read_bytes()
    (tmp_path / "c.jsonl.gz").write_bytes(cut[:-30])
    found = found_in(reading_of(mapping=mapping), tmp_path / "a.jsonl", tmp_path / "b.csv", tmp_path / "c.jsonl.gz")
    texts = [json.loads(value)["text"] for value in values(found)]
    expected = [row["text"].upper() for row in rows if row["text"] not in ("drop", "fail", "plain", "panic")]
    expected.insert(7, "a text")
    first = len(expected) + 2
    assert texts[:first] == [*expected, *expected[:2]]
    assert texts[first:] == expected[: len(texts) - first]
    assert len(texts) > len(rows) + 30, "what was read before the damage is there"
    assert refusals(found)[0] == ("a.jsonl:9", "--map: ValueError: not this one")
    assert refusals(found)[1][0] == "a.jsonl:11"
    assert "panicked" in refusals(found)[1][1]
    assert refusals(found)[-1][0] == "c.jsonl.gz"


@pytest.mark.parametrize("name", ["no.such.module:f", "json:no_such", "json", "json:__doc__"])
def test_a_function_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InputError, match="--map"):
        Mapping(name)


@pytest.mark.parametrize(
    ("name", "text", "seconds", "why"),
    [
        (SHOUT, "die", 60, "its process was ended by signal 9"),
        (SHOUT, "hang", 0.5, "it has not returned for 0.5 seconds"),
        (LIST, "leave", 60, "it ended its process with exit code 3"),
        (LIST, "hang", 0.5, "it has not returned for 0.5 seconds"),
    ],
)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_function_that_ends_its_process_or_hangs_ends_the_run_at_that_row(
    name: str, text: str, seconds: float, why: str, tmp_path: Path
) -> None:
    rows = [{"text": f"text {number}"} for number in range(6 * BATCH)]
    rows[4 * BATCH + 3]["text"] = text
    write_jsonl(tmp_path / "a.jsonl", rows)
    with closing(Mapping(name, 2, BATCH if name == LIST else None, seconds)) as mapping:
        items = read_items(find_sources([str(tmp_path / "a.jsonl")], reading_of(mapping=mapping)))
        found: list[Item | Refused] = []
        with pytest.raises(InputError, match=rf"--map {name}: {why}.*, at .*a\.jsonl:{4 * BATCH + 4}\. What was"):
            found.extend(items)  # those before the error stay
    # They come by chunks, and the one with the row is not complete: the next call makes it anew.
    texts = [json.loads(value)["text"] for value in values(found)]
    assert texts == [f"TEXT {number}" for number in range(len(texts))]
    assert len(texts) <= 4 * BATCH


@pytest.mark.slow
def test_a_process_that_the_system_ended_once_is_no_loss(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}"} for number in range(3 * BATCH)]
    rows[BATCH + 3] = {"text": "die once", "mark": str(tmp_path / "mark")}
    write_jsonl(tmp_path / "a.jsonl", rows)
    with closing(Mapping(SHOUT, 2)) as mapping:
        found = found_in(reading_of(mapping=mapping), tmp_path / "a.jsonl")
    assert [json.loads(value)["text"] for value in values(found)] == [row["text"].upper() for row in rows]


@pytest.mark.slow
def test_lists_are_given_and_taken_in_order(tmp_path: Path) -> None:
    """Of as many rows as one says; a row that is refused or dropped harms no other, though the list is made again."""
    rows = [{"id": str(number), "text": f"text {number}"} for number in range(100)]
    rows[25]["text"], rows[26]["text"], rows[27]["text"], rows[37]["text"] = "drop", "fail", "plain", "lock"
    data = b"".join([codecs.BOM_UTF8, as_lines(rows[:90]), b"{\n[]\n\x1e", as_lines(rows[90:])])
    data = data.replace(b'"text 98"', b'"text 98", "n": NaN')
    (tmp_path / "a.jsonl").write_bytes(data)
    with closing(Mapping(LIST, 3, 10)) as mapping:
        found = found_in(reading_of(mapping=mapping, nan_as_null=True), tmp_path / "a.jsonl")
    made = [json.loads(value) for value in values(found)]
    expected = [row["text"].upper() for row in rows if row["text"] not in ("drop", "fail", "plain", "lock")]
    assert [row["text"] for row in made] == [*expected[:25], "a text", *expected[25:]]
    where, why = zip(*refusals(found), strict=True)
    assert where == ("a.jsonl:27", "a.jsonl:38", "a.jsonl:91", "a.jsonl:92")
    assert why[0] == "--map: ValueError: not this one"
    assert why[1].startswith("--map: what it returned cannot leave its process: TypeError")
    assert why[2].startswith("malformed_json: no JSON from byte 1 on: ")
    assert why[3].startswith("not_an_object: a JSON value, but not an object")


@pytest.mark.slow
def test_mapped_rows_go_on_from_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.sources.file_sources.CHUNK_ENTRIES", 7)
    rows = [{"id": str(number), "text": "drop" if number % 5 == 3 else f"text {number}"} for number in range(40)]
    write_csv(tmp_path / "a.csv", rows)
    with closing(Mapping(LIST, 2, 3)) as mapping:
        (source,) = find_sources([str(tmp_path / "a.csv")], reading_of(mapping=mapping))
        chunks = list(source.chunks(Place()))
        again = [[chunk.items for chunk in source.chunks(chunk.after)] for chunk in chunks[:-1]]
    assert sum(len(chunk.items) for chunk in chunks) == 32
    assert again == [[chunk.items for chunk in chunks[number:]] for number in range(1, len(chunks))]


def test_there_is_a_process_for_each_physical_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of those that this process may use; where nobody tells, each processor counts."""
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5"), (6, "6")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr("tokenmill.app.sources.mapping._CPUS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 5, 8, 9})
    assert physical_cores() == 4


@pytest.mark.slow
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    write_jsonl(tmp_path / "a.jsonl", [{"text": "hang", "mark": str(mark)}])
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", "raw", str(tmp_path / "a.jsonl")]
    with subprocess.Popen([*command, "--map", SHOUT, "--dry-run"]) as parent:
        assert until(lambda: mark.exists() and mark.read_text() != "", PATIENCE_SECONDS)
        parent.kill()
    assert until(lambda: not Path(f"/proc/{mark.read_text()}").exists(), PATIENCE_SECONDS)


@pytest.mark.slow
def test_large_rows_are_read_a_bounded_number_of_bytes_ahead(mapping: Mapping) -> None:
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


@pytest.mark.slow
def test_piped_rows_come_before_those_behind_them_are_there(mapping: Mapping) -> None:
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


@pytest.mark.slow
def test_a_pipe_that_stays_open_holds_nothing_up() -> None:
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


def made_of(function: Callable[[Any], Any], row: dict[str, Any]) -> Any:
    (made,) = made_of_list(lambda rows: [function(rows[0])], [pickle.dumps(row)])
    return made


def packed(texts: Sequence[str]) -> list[bytes]:
    rows = [{"text": text} for text in texts]
    return [pickle.dumps(json.dumps(row).encode() if number % 2 else row) for number, row in enumerate(rows)]


@given(st.lists(st.sampled_from(["x", "drop", "fail", "plain"])))
def test_a_list_is_what_its_rows_are(texts: list[str]) -> None:
    made = made_of_list(lambda rows: [shout(row) for row in rows], packed(texts))
    assert made == [made_of(shout, {"text": text}) for text in texts]


def test_a_panic_of_native_code_is_about_its_row() -> None:
    """Though it is no `Exception`: what a tokenizer raises that gives a text up; the other rows have their answers."""
    wrong = made_of(shout, {"text": "panic"})
    assert isinstance(wrong, Wrong)
    assert wrong.why.startswith("native code that the function calls panicked (pyo3_runtime.PanicException: ")
    one, panicked, other = made_of_list(shout_all, packed(["a", "panic", "b"]))
    assert (one, other) == ({"text": "A", "rows": 1}, {"text": "B", "rows": 1})
    assert panicked == wrong


def test_a_module_that_panics_is_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_panicking.py").write_text("from tests.app.sources.maps import shout\nshout({'text': 'panic'})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"--map own_panicking:f: .*panicked"):
        find_function("own_panicking:f")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_still_does(error: type[BaseException]) -> None:
    with pytest.raises(error):
        made_of(Mock(side_effect=error), {})
    with pytest.raises(error):
        made_of_list(Mock(side_effect=error), packed("ab"))


def test_a_function_gets_all_rows_of_a_list_at_once() -> None:
    rows = [*packed(["a", "b", "c"]), pickle.dumps(b"[]")]
    *made, wrong = made_of_list(shout_all, rows)
    assert made == [{"text": text, "rows": 3} for text in "ABC"]
    assert wrong == Wrong("TypeError: not a JSON object")
    wrong = Wrong("it returned int, not a dict, a text or None")
    assert made_of(lambda _: 7, {}) == wrong
    assert made_of_list(lambda rows: ["a", 7, None][: len(rows)], packed("abc")) == ["a", wrong, None]


@pytest.mark.parametrize(("text", "what"), [("less", "9 of them"), ("odd", "str")])
def test_a_list_of_another_length_is_refused(text: str, what: str) -> None:
    made = made_of_list(shout_all, packed(["x", text, *"xxxxxxxx"]))
    assert made == [Wrong(f"it was given a list of 10 and returned {what}, not a list of as many")] * 10
