"""Other encodings than UTF-8, and compressed streams."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import found_in, reading_of, refusals, values
from tokenmill.app.sources.encodings import DAMAGE, decompressed, known_encoding, marked_encoding, recoded
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


FORMATS = {
    **dict.fromkeys(["a.txt", "a"], "{}"),
    "a.jsonl": '{{"text": "{}"}}',  # whose last line has no end
    "part-0": '{{"text": "{}"}}\n',
    "a.json": '[{{"text": "{}"}}]',
    "a.csv": "id,text\r\n1,{}\r\n",
    "a.tsv": "text\tn\n{}\t1\n",
    "a.tsv.gz": "id\ttext\n1\t{}\n",
}


def write(path: Path, text: str, encoding: str) -> None:
    data = FORMATS[path.name].format(text).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


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


WRITTEN = {"iso2022_kr": "한국어", "iso2022_jp_2": "漢字é", "shift_jis": "日本語の文です", "gb18030": "漢字、文字 Text"}
ALIKE = {"cp1252", "latin-1", "gb18030", "shift_jis"}  # the message names one of several that read the file


@pytest.mark.parametrize(
    "encoding", [*WRITTEN, "utf-16", "utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be", "cp1252", "latin-1"]
)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_in_any_encoding_and_a_message_names_it(name: str, encoding: str, tmp_path: Path) -> None:
    text = WRITTEN.get(encoding, "Ein grüner Text")
    write(tmp_path / name, text, encoding)
    if encoding != "utf-16":  # which has a mark, by which it is read
        found = found_in(reading_of(plain=True), tmp_path / name)
        assert values(found) == []
        _, _, advised = refusals(found)[0][1].partition("--encoding ")
        assert advised == encoding or encoding in ALIKE
        (value,) = values(found_in(reading_of(plain=True, encoding=advised), tmp_path / name))
        assert value.decode() == text
    (tmp_path / "b.txt").write_text("né", encoding="utf-8-sig")
    found = found_in(reading_of(encoding=encoding, plain=True), tmp_path)
    assert sorted(values(found)) == sorted([text.encode(), "né".encode()])


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
    assert known_encoding("Latin1") == known_encoding("latin-1") == codecs.lookup("iso8859-1").name
    assert known_encoding("UTF8") == "utf-8"


PACK: dict[str, Callable[[bytes], bytes]] = {".bz2": bz2.compress, ".xz": lzma.compress}
each = pytest.mark.parametrize("suffix", [*PACK])


def opened(packed: bytes, suffix: str) -> "io.BufferedReader":
    return decompressed(io.BufferedReader(io.BytesIO(packed)), suffix)


@each
@given(parts=st.lists(st.binary(max_size=30), max_size=4), padding=st.integers(0, 2), at=st.integers(0, 99))
def test_streams_behind_each_other_are_one(suffix: str, parts: list[bytes], padding: int, at: int) -> None:
    between = bytes(4 * padding) if suffix == ".xz" else b""
    stream = opened(b"".join(PACK[suffix](part) + between for part in [b"", *parts]), suffix)
    whole = b"".join(parts)
    assert stream.read() == whole
    assert stream.seek(at) == min(at, len(whole))
    assert stream.read() == whole[at:]
    assert stream.seek(0, io.SEEK_END) == len(whole)
    assert stream.seek(-min(3, len(whole)), io.SEEK_END) == max(0, len(whole) - 3)
    assert stream.read() == whole[-3:]


@each
@pytest.mark.parametrize("behind", [b"rubbish", b"\0rubbish", b"BZ", b"\xfd7z", b"\0" * 5])
def test_rubbish_behind_a_stream_is_damage(suffix: str, behind: bytes) -> None:
    """The libraries' own files take it for the end; what is before it is read."""
    stream = opened(PACK[suffix](b"text") + behind, suffix)
    assert stream.read1() == b"text"
    with pytest.raises(DAMAGE):
        stream.read()


@each
@pytest.mark.slow
def test_a_bomb_is_read_in_pieces(suffix: str) -> None:
    stream = opened(PACK[suffix](bytes(32 << 20)), suffix)
    most = max(len(piece) for piece in iter(lambda: stream.read1(1 << 20), b""))
    assert most <= 1 << 20


def test_an_xz_file_that_asks_for_gigabytes_is_damage() -> None:
    """Its dictionary would be in memory as a whole."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    packed = bytearray(lzma.compress(b"text", filters=filters))
    assert opened(bytes(packed), ".xz").read() == b"text"
    header = packed[12:24]
    header[4] = 40  # dictionary size 4 GiB - 1, in a block's header, which has a checksum of its own
    header[8:] = zlib.crc32(header[:8]).to_bytes(4, "little")
    packed[12:24] = header
    with pytest.raises(DAMAGE, match=r"[Mm]emory"):
        opened(bytes(packed), ".xz").read()
