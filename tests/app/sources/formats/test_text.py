"""Text files: lines of any length; tables, whatever is wrong with the rows beside others."""

import io
import os
from dataclasses import replace
from io import BufferedReader, BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer import BadParameter

from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tokenmill.app.cli.reading_options import parse_character
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Reading, Refused
from tokenmill.app.sources.formats import text as tables
from tokenmill.app.sources.formats.text import read_csv, read_lines, row_ends
from tokenmill.app.sources.items import START, Bad, Content, Entry, File, Needs, Place


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
@example(lines=[b"0000000\r"], limit=7)
@example(lines=[b"0000000\r\r", b"1"], limit=7)
@example(lines=[b"0000000\r\r1", b"1"], limit=7)
@example(lines=[b"0000000\r\r\r\r\r\r\r\r\r\r\r\r"], limit=7)
def test_lines_of_any_length_are_found_from_any_place(lines: list[bytes], limit: int) -> None:
    whole = b"\n".join(lines)
    expected = [
        (number, None if len(body) > limit else body)
        for number, line in enumerate(whole.split(b"\n"), start=1)
        for body in (line.rstrip(b"\r"),)
        if body.strip() or len(body) > limit
    ]
    found = list(read_lines(io.BytesIO(whole), limit))
    assert [(number, data) for number, _, _, data in found] == expected
    for place, (number, _, at, _) in enumerate(found, 1):
        assert list(read_lines(io.BytesIO(whole), limit, Place(number, at))) == found[place:]


def test_a_long_line_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(64 << 20)  # zeros, which take no room on disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nshort\n")
    with path.open("rb") as stream:
        found, peak = peak_of(lambda: list(read_lines(stream, 1 << 20)))
    assert [content for _, _, _, content in found] == [None, b"short"]
    assert peak < 5 << 20


HEAD = "id,text\n"


def read(tmp_path: Path, content: str, reading: Reading | None = None) -> tuple[list[str], list[tuple[str, str]]]:
    found = found_in(reading or reading_of(), _written(tmp_path, content.encode()))
    return [item.text for item in found if isinstance(item, Item)], refusals(found)


def _written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    return path


def test_fields_may_hold_line_breaks_and_quotes(tmp_path: Path) -> None:
    texts, refused = read(tmp_path, '\ufeffid,text\r\n1,"a ""b"",\r\nc"\r\n\r\n2,d\r\n3\r\n')
    assert texts == ['a "b",\r\nc', "d"]
    assert refused == [("a.csv:6", "1 fields, and the first line names 2")]


OPEN = "a quote is not closed; where quotes are a part of the text: --quote none"
GOES_ON = "a field goes on behind its closing quote; where quotes are a part of the text: --quote none"
FAULTS: dict[str, tuple[bytes, str]] = {
    "a quote that does not close": (b'2,"Hello, he said', OPEN),
    "text behind a quote": (b'2,"one" more', GOES_ON),
    "backslashes": (
        b'2,"He said \\"no\\", twice"',
        f"{GOES_ON}; where a backslash stands before quotes: --escape '\\'",
    ),
    "too few fields": (b"2", "1 fields, and the first line names 2"),
    "too many fields": (b"2,a,b", "3 fields, and the first line names 2"),
    "NUL bytes": (b"2,\0\0", "not text: line 4 holds NUL bytes"),
    "too long": (b"2," + b"x" * 999, "longer than 500 bytes (max_record_bytes)"),
    "no UTF-8": (b"2,\xff", "not UTF-8: invalid start byte at byte 2 of line 4"),
    "no UTF-8 in quotes": (b'2,"\xff"', "not UTF-8: invalid start byte at byte 3 of line 4"),
    "the first line again": (b"id,text", "the names of the columns again, as where files were joined"),
    "another line end": (b"2,a\rb", "a carriage return within a line: quote the field, or end all lines alike"),
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("fault", [*FAULTS])
def test_a_row_that_is_none_takes_no_other_with_it(fault: str, end: bytes, tmp_path: Path) -> None:
    line, why = FAULTS[fault]
    lines = [b"id,text", b'1,"a\n""b"', line, b"3,c", b'4,"d\ne"', b""]
    found = found_in(reading_of(Settings(max_record_bytes=500)), _written(tmp_path, end.join(lines)))
    assert [item.text for item in found if isinstance(item, Item)] == ['a\n"b', "c", "d\ne"]
    (refused,) = (item for item in found if isinstance(item, Refused))
    assert Path(refused.where).name == "a.csv:4"
    assert refused.why.partition("; it seems to be ")[0] == why
    assert refused.data.strip() == (line if len(line) < 500 else b"")
    assert not refused.broken


def test_a_first_line_that_names_no_columns_is_the_end(tmp_path: Path) -> None:
    found = found_in(reading_of(), _written(tmp_path, b'id,"text\n1,a\n'))
    told = [(item.broken, item.why) for item in found if isinstance(item, Refused)]
    assert told == [(True, f"no names of columns: {OPEN}")]


def test_quotes_can_be_text_or_others_and_be_escaped(tmp_path: Path) -> None:
    rows = b'id,text\n1,"a\n2,b \\"c\\"\n'
    plain = reading_of(plain=True)
    assert values(found_in(replace(plain, quote=""), _written(tmp_path, rows))) == [b'"a', b'b \\"c\\"']
    rows = b"id,text\n1,'a, \\'b\\'\nc'\n2,\"d\n"
    found = found_in(replace(plain, quote="'", escape="\\"), _written(tmp_path, rows))
    assert values(found) == [b"a, 'b'\nc", b'"d']


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbfsep=;\r\nid;text\r\n1;"a\r\nb"\r\n2;c\r\n',
        b'"sep=;"\nid;text\n1;"a\r\nb"\n2;c',
        b'sep=\t\rid\ttext\r1\t"a\r\nb"\r2\tc\r',
        b'id,text\r1,"a\r\nb"\r2,c',
        b'\n\nid,text\n\n1,"a\r\nb"\n\n2,c\n',
    ],
)
def test_what_spreadsheets_write_is_read(content: bytes, tmp_path: Path) -> None:
    found = found_in(reading_of(plain=True), _written(tmp_path, content))
    assert [value.replace(b"\n\n", b"\r\n") for value in values(found)] == [b"a\r\nb", b"c"]


def test_a_line_that_ends_with_returns_may_be_of_any_length(tmp_path: Path) -> None:
    long = b"x" * (tables._FIRST_LINE + 9)
    for content in (b"id,text," + long + b"\n1,a,b\n", b"id,text\r1," + long + b"\r2,a\r"):
        assert values(found_in(reading_of(plain=True), _written(tmp_path, content)))[-1] == b"a"


FRAGMENTS = st.lists(
    st.sampled_from([b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"1,a\n", b'2,"b\nc"\n', b"\0", b"\xff", b"x" * 30]),
    max_size=40,
)


@given(fragments=FRAGMENTS, limit=st.integers(1, 40) | st.just(1000), returns=st.booleans())
@example(fragments=[b'a","b\n'] * 40, limit=1000, returns=False)
def test_rows_and_refusals_are_all_lines_of_any_table(fragments: list[bytes], limit: int, *, returns: bool) -> None:
    content = b"id,text" + (b"\r" if returns else b"\n") + b"".join(fragments)
    entries, ends = _entries(content, limit), [*row_ends(_opened(content), Needs(limit), tabs=False)]
    numbers = [number for number, _, _ in entries]
    assert numbers == sorted(set(numbers))
    assert not numbers or numbers[-1] <= ends[-1].entry
    assert ends[-1].byte == len(content)
    for place, number in enumerate(numbers, 1):
        assert _entries(content, limit, Place(number)) == entries[place:]
    for end in ends[1:]:
        assert _entries(content, limit, end, end) == [entry for entry in entries if entry[0] > end.entry]
    whole = len(content) < limit
    told = b"".join(_bytes_of(found) for _, _, found in entries)
    if whole and not returns:  # quotes and delimiters apart, and empty lines
        assert _bare(told) == _bare(content.partition(b"\n")[2])


def _entries(content: bytes, limit: int, start: Place = START, begin: Place = START) -> list[Entry]:
    file = _opened(content)
    file.begin = begin
    return list(read_csv(file, Needs(limit), start))


def _opened(content: bytes) -> File:
    return File("a", BufferedReader(BytesIO(content)))


def _bytes_of(content: Content) -> bytes:
    if isinstance(content, Bad):
        return content.data
    assert isinstance(content, dict)
    return "".join(content.values()).encode()


def _bare(data: bytes) -> bytes:
    return data.translate(None, b'",\r\n')


def test_quotes_that_do_not_close_cost_time_for_their_bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these lines may go on to the end of the file."""
    read = count()
    own = tables._Table._piece

    def counted(table: tables._Table, most: int) -> bytes:
        next(read)
        return own(table, most)

    monkeypatch.setattr(tables._Table, "_piece", counted)
    lines = 10_000

    entries = _entries(b"id,text\n" + b'a","b\n' * lines, 1 << 20)

    assert len(entries) == lines
    assert next(read) < 8 * lines


def test_a_long_row_is_refused_alone(tmp_path: Path) -> None:
    limit = reading_of(Settings(max_record_bytes=100))
    assert read(tmp_path, HEAD + '1,a\n2,"b\n' + "3,c\n" * 99, limit) == (["a", *["c"] * 99], [("a.csv:3", OPEN)])


def test_a_table_without_the_column_says_which_there_are(tmp_path: Path) -> None:
    texts, refused = read(tmp_path, "name,story\n1,a\n2,b\n")
    assert texts == []
    why = "no column 'text' or 'content'; there are: 'name', 'story'; say which is the text: --field"
    assert refused == [("a.csv:1", why)]
    ((_, told),) = read(tmp_path, "1,eng,a\n2,eng,b\n")[1]
    assert told.endswith("or is it a row already? put a line that names the columns before it")


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        ("text,id,text\na,1,b\n", {}, "the column 'text' is there twice"),
        ("text,x,x\na,1,2\n", {}, ""),
        ("text;id\na;1\n", {"delimiter": ";", "quote": ";"}, "cannot be the one of --quote"),
        ("text,id\na,1\n", {"quote": ","}, "cannot be the one of --quote"),
        ("text,id\na,1\n", {"escape": ","}, "cannot be the one of --quote or --escape"),
    ],
)
def test_what_has_two_meanings_is_refused(content: str, options: dict[str, Any], why: str, tmp_path: Path) -> None:
    if not why:
        texts, refused = read(tmp_path, content)
        assert (texts, refused) == (["a"], [])  # nobody needs that column
        return
    texts, refused = read(tmp_path, content, replace(reading_of(), **options))
    assert texts == []
    ((_, told),) = refused
    assert why in told


def test_columns_become_the_topics_fields(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("uid\tstory\tlang\tmore\n7\tonce\tde\tx\n")
    found = found_in(reading_of(fields=["story"], id_field="uid", metadata_fields=["lang"]), tmp_path / "a.tsv")
    assert values(found) == [b'{"id":"7","text":"once","lang":"de"}']


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_delimiter_holds_for_every_table(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('id;text\n1;"a;b"\n2;a,b\tc\n')
    assert values(found_in(reading_of(delimiter=";", plain=True), tmp_path / name)) == [b"a;b", b"a,b\tc"]


def test_another_delimiter_is_never_guessed_but_told(tmp_path: Path) -> None:
    _, refused = read(tmp_path, "id;text\n1;a\n")
    assert refused[0][1].endswith("say which is the text: --field; or is the delimiter another one? --delimiter ';'")
    _, refused = read(tmp_path, "a;b,c\n1;a,b\n")
    assert refused[0][1].endswith("--field")


def test_a_delimiter_is_one_character() -> None:
    meant = {None: None, ";": ";", "\\t": "\t", "tab": "\t", "\t": "\t"}
    assert {said: parse_character("delimiter", said) for said in meant} == meant
    for said in ("", ";;", '"', "\n", "\\n"):
        with pytest.raises(BadParameter, match="one character"):
            parse_character("delimiter", said)
