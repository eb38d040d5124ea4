"""`--map`: a function of one's own on every row."""

import json
from pathlib import Path

import pytest

from tests.app.produce.files import write_csv, write_gzip, write_jsonl
from tests.app.produce.reading import found_in, reading_of, refusals, values
from tokenmill.app.produce.mapping import BATCH, Mapping
from tokenmill.errors import InputError


def test_rows_are_mapped_in_order_by_several_processes(tmp_path: Path) -> None:
    """More rows than one trip takes; what the function refuses is named with its line, what it drops is not."""
    rows = [{"id": str(number), "text": f"text {number}"} for number in range(5 * BATCH)]
    rows[7]["text"], rows[8]["text"], rows[9]["text"] = "drop", "fail", "plain"
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_csv(tmp_path / "b.csv", rows[:2])
    write_gzip(tmp_path / "c.jsonl.gz", rows[:80])
    cut = (tmp_path / "c.jsonl.gz").read_bytes()
    (tmp_path / "c.jsonl.gz").write_bytes(cut[:-30])
    mapping = Mapping("tests.app.produce.maps:shout", processes=2)
    try:
        found = found_in(reading_of(mapping=mapping), tmp_path / "a.jsonl", tmp_path / "b.csv", tmp_path / "c.jsonl.gz")
    finally:
        mapping.close()

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
