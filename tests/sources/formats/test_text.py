"""Text files: lines of any length, and tables."""

import io
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer import BadParameter

from tests.sources.reading import found_in, reading_of, refusals, values
from tokenmill.app.cli.reading_options import parse_delimiter
from tokenmill.app.settings import Settings
from tokenmill.sources import Item, Reading
from tokenmill.sources.formats.text import read_lines
from tokenmill.sources.items import Place


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
@example(lines=[b"0000000\r"], limit=7)
@example(lines=[b"0000000\r\r", b"1"], limit=7)
@example(lines=[b"0000000\r\r1", b"1"], limit=7)
@example(lines=[b"0000000\r\r\r\r\r\r\r\r\r\r\r\r"], limit=7)
def test_lines_are_found_whatever_their_length(lines: list[bytes], limit: int) -> None:
    """Every line up to the limit is read as it is, and every longer one is named, by its number."""
    whole = b"\n".join(lines)
    expected = [
        (number, None if len(body) > limit else body)
        for number, line in enumerate(whole.split(b"\n"), start=1)
        for body in (line.rstrip(b"\r"),)
        if body.strip() or len(body) > limit
    ]

    found = [(number, data) for number, _, _, data in read_lines(io.BytesIO(whole), limit)]

    assert found == expected


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
def test_lines_are_found_again_from_any_place(lines: list[bytes], limit: int) -> None:
    """Number and end of a line are all that is needed to read the lines behind it."""
    whole = b"\n".join(lines)
    found = list(read_lines(io.BytesIO(whole), limit))

    for place, (number, _, at, _) in enumerate(found, 1):
        assert list(read_lines(io.BytesIO(whole), limit, Place(number, at))) == found[place:]


def test_a_long_line_is_never_in_memory(tmp_path: Path) -> None:
    """It is passed over in pieces of the limit's size, whatever its length."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(64 << 20)  # zeros, which take no room on disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nshort\n")
    tracemalloc.start()
    try:
        with path.open("rb") as stream:
            found = list(read_lines(stream, 1 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [content for _, _, _, content in found] == [None, b"short"]
    assert peak < 5 << 20


HEAD = "id,text\n"


def read(
    tmp_path: Path, content: bytes | str, reading: Reading | None = None
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts of a csv file, and what was refused."""
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    found = found_in(reading or reading_of(), path)
    return [item.text for item in found if isinstance(item, Item)], refusals(found)


def test_fields_may_hold_line_breaks_and_quotes(tmp_path: Path) -> None:
    """The number is that of the row's last line, and an empty line is no row."""
    texts, refused = read(tmp_path, '\ufeffid,text\r\n1,"a ""b"",\r\nc"\r\n\r\n2,d\r\n3\r\n')

    assert texts == ['a "b",\r\nc', "d"]
    assert refused == [("a.csv:6", "1 fields, and the first line names 2")]


def test_a_row_that_is_no_utf8_is_refused_alone(tmp_path: Path) -> None:
    """With its line; the others are read."""
    texts, refused = read(tmp_path, b"id,text\n1,\xff\n2,b\n")

    assert (texts, [where for where, _ in refused]) == (["b"], ["a.csv:2"])
    assert "not UTF-8" in refused[0][1]


def test_a_long_line_is_passed_over_and_a_missing_quote_ends_the_file(tmp_path: Path) -> None:
    """Neither is ever in memory as a whole."""
    limit = reading_of(Settings(max_record_bytes=100))
    assert read(tmp_path, HEAD + "1," + "x" * 300 + "\n2,b\n", limit) == (
        ["b"],
        [("a.csv:2", "longer than 100 bytes (max_record_bytes)")],
    )
    texts, refused = read(tmp_path, HEAD + '1,a\n2,"b\n' + "x\n" * 300, limit)
    assert texts == ["a"]
    assert "is a quote missing?" in refused[0][1]


def test_a_table_without_the_column_says_which_there_are(tmp_path: Path) -> None:
    """Once, not once for each row; and what to do."""
    texts, refused = read(tmp_path, "name,story\n1,a\n2,b\n")

    assert texts == []
    why = "no column 'text' or 'content'; there are: 'name', 'story'; say which is the text: --field"
    assert refused == [("a.csv:1", why)]


def test_columns_become_the_topics_fields(tmp_path: Path) -> None:
    """Text and id under the topic's names; carried ones beside them, and no others."""
    (tmp_path / "a.tsv").write_text("uid\tstory\tlang\tmore\n7\tonce\tde\tx\n")

    found = found_in(reading_of(fields=["story"], id_field="uid", metadata_fields=["lang"]), tmp_path / "a.tsv")

    assert values(found) == [b'{"id":"7","text":"once","lang":"de"}']


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_delimiter_holds_for_every_table(name: str, tmp_path: Path) -> None:
    """Quotes are as ever, and the other delimiters are text."""
    (tmp_path / name).write_text('id;text\n1;"a;b"\n2;a,b\tc\n')

    assert values(found_in(reading_of(delimiter=";", plain=True), tmp_path / name)) == [b"a;b", b"a,b\tc"]


def test_another_delimiter_is_never_guessed_but_told(tmp_path: Path) -> None:
    """Where the first line has it and not the one that it should have."""
    _, refused = read(tmp_path, "id;text\n1;a\n")
    assert refused[0][1].endswith("say which is the text: --field; or is the delimiter another one? --delimiter ';'")

    _, refused = read(tmp_path, "a;b,c\n1;a,b\n")
    assert refused[0][1].endswith("--field")


@pytest.mark.parametrize(("given", "meant"), [(None, None), (";", ";"), ("\\t", "\t"), ("tab", "\t"), ("\t", "\t")])
def test_a_delimiter_is_one_character(given: str | None, meant: str | None) -> None:
    """A tab can be written down."""
    assert parse_delimiter(given) == meant


@pytest.mark.parametrize("given", ["", ";;", '"', "\n", "\\n"])
def test_what_cannot_stand_between_fields_is_refused(given: str) -> None:
    """Before anything is read."""
    with pytest.raises(BadParameter, match="one character"):
        parse_delimiter(given)
