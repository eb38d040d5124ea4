"""Other encodings than UTF-8."""

import codecs
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import found_in, reading_of, refusals, values
from tokenmill.app.sources.encodings import known_encoding, marked_encoding, recoded
from tokenmill.app.sources.items import Refused
from tokenmill.errors import InputError

ENCODINGS = ["latin-1", "cp1252", "utf-16", "utf-16-be", "utf-32", "gb18030", "shift_jis", "iso2022_jp", "utf-7"]


class Drops(io.BytesIO):
    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[:3])


def stream_of(data: bytes) -> "io.BufferedReader[io.BytesIO]":
    return io.BufferedReader(Drops(data), 5)


@given(text=st.text("aé\r\n漢字𝄞🙂\0"), at=st.integers(0, 40))
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "gb18030", "utf-7"])
def test_any_text_is_the_same_in_utf_8_from_any_place(encoding: str, text: str, at: int) -> None:
    utf_8 = text.encode()
    stream = recoded(stream_of(text.encode(encoding)), encoding)
    assert stream.read() == utf_8
    at = min(at, len(utf_8))
    assert stream.seek(at) == at
    assert stream.read() == utf_8[at:]
    assert stream.seek(len(utf_8)) == len(utf_8)
    assert stream.read() == b""


@given(data=st.binary(max_size=60), encoding=st.sampled_from(ENCODINGS))
def test_what_is_no_character_is_no_utf_8(data: bytes, encoding: str) -> None:
    """Any bytes are read to their end; a text comes out if and only if they are one."""
    if encoding in ("utf-16", "utf-32") and marked_encoding(data) != encoding:
        return  # see the next test
    found = recoded(stream_of(data), encoding).read()
    try:
        expected = data.decode(encoding)
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            found.decode()
    else:
        assert found.decode() == expected


def test_a_missing_byte_order_mark_is_told(tmp_path: Path) -> None:
    """Which of the two orders it is, only a person knows."""
    (tmp_path / "a.csv").write_bytes("id,text\n1,x\n".encode("utf-16-le"))
    (refused,) = found_in(reading_of(encoding="utf-16"), tmp_path)
    assert isinstance(refused, Refused)
    assert refused.broken
    assert "does not start with BOM: name the encoding that needs none, for example utf-16-le" in refused.why


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-32-be", "shift_jis"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.txt", "a.jsonl", "a.json", "says-nothing"])
def test_every_format_of_text_is_read_in_any_encoding(name: str, encoding: str, tmp_path: Path) -> None:
    text = "grün" if encoding in ("latin-1", "cp1252") else "漢字"
    row = json.dumps({"text": text}, ensure_ascii=False)
    content = {
        "a.csv": f"id,text\r\n1,{text}\r\n",
        "a.tsv.gz": f"id\ttext\n1\t{text}\n",
        "a.txt": text,
        "a.jsonl": row,
        "a.json": f"[{row}]",
        "says-nothing": f"{row}\n",
    }[name]
    data = content.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (tmp_path / "b.txt").write_text("né", encoding="utf-8-sig")

    found = found_in(reading_of(encoding=encoding, plain=True), tmp_path)

    assert sorted(values(found)) == sorted([text.encode(), "né".encode()])


@pytest.mark.parametrize(
    ("encoding", "bad", "character"), [("shift_jis", b"\x82", 3), ("cp1252", b"\x81", 3), ("utf-16-le", b"\x00\xdc", 3)]
)
def test_wrong_bytes_are_refused_with_file_and_line(encoding: str, bad: bytes, character: int, tmp_path: Path) -> None:
    lines = [line.encode(encoding) for line in ("text\n", "one\n", "ok", "\n", "two\n")]
    (tmp_path / "a.csv").write_bytes(b"".join([*lines[:3], bad, *lines[3:]]))
    (tmp_path / "b.txt").write_bytes(b"".join([*lines[:3], bad, *lines[3:]]))
    reading = reading_of(encoding=encoding, plain=True, choice="lines")
    found = found_in(reading, tmp_path)
    assert values(found) == [b"one", b"two", b"text", b"one", b"two"]
    why = f"not {encoding}: character {character} is none"
    assert refusals(found) == [("a.csv:3", f"{why} of line 3"), ("b.txt:3", why)]
    ((where, told),) = refusals(found_in(reading_of(encoding=encoding), tmp_path / "b.txt"))
    assert where == "b.txt"
    assert told.startswith(f"not {encoding}: character ")


def test_a_byte_order_mark_names_the_encoding(tmp_path: Path) -> None:
    """As spreadsheets and editors write it; nothing else is guessed, and the message says what it seems to be."""
    for number, encoding in enumerate(("utf-16", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig")):
        mark = "" if encoding in ("utf-16", "utf-32", "utf-8-sig") else "\ufeff"
        (tmp_path / f"{number}.csv").write_bytes(f"{mark}id,text\n1,grün\n".encode(encoding))
    (tmp_path / "5.csv").write_bytes("id,text\n1,grün\n".encode("latin-1"))
    (tmp_path / "6.txt").write_bytes("grün".encode("utf-16"))
    (tmp_path / "7.jsonl").write_bytes('{"text": "grün"}\n'.encode("utf-16"))
    (tmp_path / "8.txt").write_bytes("Ein grüner Text.".encode("utf-16-le"))
    (tmp_path / "9.txt").write_bytes("Это русский текст, в старой кодировке.".encode("koi8-r"))
    (tmp_path / "x.txt").write_bytes(bytes(range(256)))

    found = found_in(reading_of(plain=True), tmp_path)

    assert values(found) == ["grün".encode()] * 7
    told = dict(refusals(found))
    assert [*told] == ["5.csv:2", "8.txt", "9.txt", "x.txt"]
    assert told["8.txt"].endswith("; it seems to be utf-16-le, 'Ein gr\\xfcner Text.': if so, --encoding utf-16-le")
    assert "koi8-r" in told["9.txt"]
    assert told["x.txt"] == "not text: it holds NUL bytes"


LIKE_UTF_8 = {"iso2022_kr": "한국어", "iso2022_jp_2": "漢字é"}
"""By encodings whose bytes are ASCII."""


@pytest.mark.parametrize(
    "encoding", [*LIKE_UTF_8, "utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be", "cp1252", "gb18030"]
)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "{}"),
        ("a", "{}"),
        ("a.jsonl", '{{"text": "{}"}}\n'),
        ("a.json", '[{{"text": "{}"}}]'),
        ("part-0", '{{"text": "{}"}}\n'),
        ("a.csv", "id,text\n1,{}\n"),
        ("a.tsv", "text\tn\n{}\t1\n"),
        ("a.tsv.gz", "id\ttext\n1\t{}\n"),
    ],
)
def test_the_message_names_an_encoding_that_reads_the_file(
    name: str, content: str, encoding: str, tmp_path: Path
) -> None:
    """Of every format; what it seems to be is no rule, so nothing is read before somebody says it."""
    text = LIKE_UTF_8.get(encoding, "Ein 漢字、文字 Text" if encoding == "gb18030" else "Ein grüner Text")
    data = content.format(text).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = found_in(reading_of(plain=True), tmp_path / name)
    assert values(found) == []
    _, _, advised = refusals(found)[0][1].partition("--encoding ")
    assert advised == encoding or encoding in {"cp1252", "gb18030"}  # others are like these
    (value,) = values(found_in(reading_of(plain=True, encoding=advised), tmp_path / name))
    assert value.decode() == text


@pytest.mark.parametrize("name", ["no-such", "hex", "undefined", "idna", "utf\0-8", ""])
def test_an_encoding_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"--encoding .*for example: utf-16"):
        known_encoding(name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
def test_a_wrong_encoding_is_not_answered_with_another_guess(name: str, tmp_path: Path) -> None:
    """What was decoded with it says nothing of the encoding that the file has."""
    text = '[{"text": "grün"}]' if name == "a.json" else '{"text": "grün"}' if name == "a.jsonl" else "text\ngrün\n"
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    ((_, told),) = refusals(found_in(reading_of(encoding="ascii"), tmp_path / name))
    assert "it seems to be" not in told
    assert "none in the encoding that --encoding" in told or told.startswith("not ascii: character")


def test_encodings_have_one_name() -> None:
    """So that a run is the same one, however somebody calls its encoding."""
    assert known_encoding("Latin1") == known_encoding("latin-1") == codecs.lookup("iso8859-1").name
    assert known_encoding("UTF8") == "utf-8"
