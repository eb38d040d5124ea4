"""Files of every format, cut or damaged anywhere: what is sent and what is refused together are all of it."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.sources.files import WRITERS, as_lines, warc_record, zstd
from tests.app.sources.reading import found_in, reading_of
from tokenmill.app.sources import Item, Refused
from tokenmill.app.sources.formats import Choice

TEXTS: Final = [
    f"Document {n}{more}" for n, more in enumerate(("", ", é", ' "x"', "\nand a line", "", "{[", "\t", "", ""))
]
ROWS: Final = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
LINES: Final = ROWS[:3] + ROWS[4:]
"""Rows of which each is a line, whatever the format."""


def packed_in_zip(path: Path) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for begin in range(0, len(ROWS), 3):
            archive.writestr(f"{begin}.jsonl", as_lines(ROWS[begin : begin + 3]))


class Kind(NamedTuple):
    name: str
    write: Callable[[Path], object]
    choice: Choice = "auto"
    sealed: bool = False
    """Checksums, or an end that must be there, show any damage and any cut."""
    cut_shows: bool = False
    """A cut shows."""
    pieces: Mapping[bytes, str] = {}
    """Texts by what of the file can be read by itself: lines, records."""


def _written(name: str, rows: list[dict[str, str]] = ROWS) -> Callable[[Path], object]:
    return lambda path: WRITERS[name](path, rows)


def _plain_lines(delimiter: str) -> dict[bytes, str]:
    plain = [row for row in LINES if not {'"', delimiter} & set(row["text"])]
    return {f"{row['id']}{delimiter}{row['text']}".encode(): row["text"] for row in plain}


OBJECTS: Final = {line: row["text"] for line, row in zip(as_lines(ROWS).splitlines(), ROWS, strict=True)}
RECORDS: Final = {warc_record("conversion", row["id"], row["text"]): row["text"] for row in ROWS}
CHECKED: Final = {zstd.CompressionParameter.checksum_flag: 1}
KINDS: Final = [
    Kind("a.txt", lambda path: path.write_text("\n".join(TEXTS))),
    Kind("b.txt", lambda path: path.write_text("\n".join(row["text"] for row in LINES)), "lines",
         pieces={row["text"].encode(): row["text"] for row in LINES}),
    Kind("a.jsonl", lambda path: path.write_bytes(as_lines(ROWS)), pieces=OBJECTS),
    Kind("a.json", lambda path: path.write_text("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n"), cut_shows=True,
         pieces=OBJECTS),
    Kind("b.json", _written("b.json"), cut_shows=True),
    Kind("a.csv", _written("h.csv"), pieces=_plain_lines(",")),
    Kind("a.tsv", _written("i.tsv"), pieces=_plain_lines("\t")),
    Kind("b.tsv", _written("o.tsv")),
    Kind("a.parquet", _written("e.parquet"), cut_shows=True),
    Kind("a.arrow", _written("f.arrow"), cut_shows=True),
    Kind("a.arrows", _written("g.arrows")),
    Kind("a.warc", lambda path: path.write_bytes(b"".join(RECORDS)), pieces=RECORDS),
    Kind("a.zip", packed_in_zip, cut_shows=True),
    Kind("a.jsonl.gz", lambda path: path.write_bytes(gzip.compress(as_lines(ROWS))), sealed=True),
    Kind("a.jsonl.zst", lambda path: path.write_bytes(zstd.compress(as_lines(ROWS), options=CHECKED)), sealed=True),
    Kind("a.jsonl.bz2", lambda path: path.write_bytes(bz2.compress(as_lines(ROWS))), sealed=True),
    Kind("a.jsonl.xz", lambda path: path.write_bytes(lzma.compress(as_lines(ROWS))), sealed=True),
    Kind("a.warc.gz", lambda path: path.write_bytes(gzip.compress(b"".join(RECORDS))), sealed=True),
]  # fmt: skip
PUT: Final = st.sampled_from(
    [b'"', b"\n", b"\r", b"\\", b",", b"{", b"}", b"]", b"\0", b"\xff", b"\x80\x00\x00\x7f"]
) | st.binary(max_size=4)


class Found(NamedTuple):
    texts: list[str]
    refused: list[Refused]

    @property
    def told(self) -> bytes:
        return b"\n".join(one.data for one in self.refused)


def read(kind: Kind, path: Path) -> Found:
    found = found_in(reading_of(choice=kind.choice), path)
    return Found(
        [one.text for one in found if isinstance(one, Item)], [one for one in found if isinstance(one, Refused)]
    )


anywhere = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
EXAMPLES: Final = settings().max_examples
often = settings(  # few in a plain run, for there are many formats
    max_examples=EXAMPLES if EXAMPLES > 100 else 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@anywhere
def test_a_file_that_is_well_is_sent(kind: Kind, tmp_path: Path) -> None:
    """All of it, and nothing is refused: so that what the others show is about damage."""
    kind.write(tmp_path / kind.name)
    found = read(kind, tmp_path / kind.name)
    assert len(found.texts) in (len(ROWS), len(LINES), 1)
    assert not found.refused
    _all_pieces(kind, (tmp_path / kind.name).read_bytes(), found)
    assert {*kind.pieces.values()} <= {*found.texts}


@anywhere
@often
@given(data=st.data())
def test_a_cut_loses_nothing_in_silence(kind: Kind, tmp_path: Path, data: st.DataObject) -> None:
    """What is sent is in the whole file, and where the format has an end, it is told that this one is not there."""
    path = tmp_path / kind.name
    kind.write(path)
    whole, content = read(kind, path), path.read_bytes()
    cut = content[: data.draw(st.integers(0, len(content) - 1), "cut")]
    path.write_bytes(cut)

    found = read(kind, path)

    number = len(found.texts)
    assert found.texts[:-1] == whole.texts[: max(0, number - 1)]
    if number and found.texts[-1] != whole.texts[number - 1]:  # cut within it, which lines and texts do not show
        assert not kind.sealed
        assert not kind.cut_shows
        assert whole.texts[number - 1].startswith(found.texts[-1])
    if kind.sealed or kind.cut_shows:
        assert found.texts == whole.texts or found.refused or not cut
    _all_pieces(kind, cut, found)


@anywhere
@often
@given(data=st.data())
def test_damage_loses_nothing_in_silence(kind: Kind, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes that were put in, taken out or changed: what is left of the file is sent, or refused with its bytes."""
    path = tmp_path / kind.name
    kind.write(path)
    whole, content = read(kind, path), path.read_bytes()
    begin = data.draw(st.integers(0, len(content)), "begin")
    end = min(len(content), begin + data.draw(st.sampled_from([0, 1, 4, 40]), "bytes"))
    damaged = content[:begin] + data.draw(PUT, "put") + content[end:]
    path.write_bytes(damaged)
    found = read(kind, path)
    if kind.sealed:
        assert found.texts == whole.texts or found.refused
    _all_pieces(kind, damaged, found)


def _all_pieces(kind: Kind, content: bytes, found: Found) -> None:
    lines = {line.rstrip(b",\r" if kind.name == "a.json" else b"\r") for line in content.split(b"\n")}
    if any(one.broken for one in found.refused):
        return
    for piece, text in kind.pieces.items():
        if piece in (content if kind.name == "a.warc" else lines):
            assert text in found.texts or piece in found.told
