"""Files of every format, cut, damaged or with bad content: what is sent and what is refused together are all of it."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.sources.files import WRITERS, as_lines, warc_record, zstd
from tests.app.sources.formats.test_columnar import arrow
from tests.app.sources.reading import found_in, reading_of
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused
from tokenmill.app.sources.formats import Choice

TEXTS: Final = [
    f"Document {n}{more}" for n, more in enumerate(("", ", é", ' "x"', "\nand a line", "", "{[", "\t", "", ""))
]
ROWS: Final = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
LINES: Final = ROWS[:3] + ROWS[4:]  # rows of which each is a line, whatever the format


def packed_in_zip(path: Path) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for begin in range(0, len(ROWS), 3):
            archive.writestr(f"{begin}.jsonl", as_lines(ROWS[begin : begin + 3]))


class Kind(NamedTuple):
    name: str
    write: Callable[[Path], object]
    choice: Choice = "auto"
    sealed: bool = False  # checksums, or an end that must be there, show any damage and any cut
    cut_shows: bool = False
    pieces: Mapping[bytes, str] = {}  # texts by what of the file can be read by itself: lines, records


def _written(name: str) -> Callable[[Path], object]:
    return lambda path: WRITERS[name](path, ROWS)


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
    refused = [one for one in found if isinstance(one, Refused)]
    return Found([one.text for one in found if isinstance(one, Item)], refused)


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


PAGE: Final = (Path(__file__).parents[3] / "docs" / "produce.md").read_text()
WORDS: Final = ["one", "two", "three"]
ODD: Final = b"tw\xff"  # no UTF-8


def _lines(texts: list[Any], **_: Any) -> bytes:
    return b"".join(_bytes(text) + b"\n" for text in texts)


def _objects(texts: list[Any], name: str = "text", **more: Any) -> list[bytes]:
    return [json.dumps({name: "#", **more}).encode().replace(b"#", _bytes(text)) for text in texts]


def _csv(texts: list[Any], name: str = "text", **more: Any) -> bytes:
    rows = [[name, *more], *([text, *more.values()] for text in texts)]
    return _lines([b",".join(map(_bytes, row)) for row in rows])


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _table(texts: list[Any], name: str = "text", **more: Any) -> pa.Table:
    column = pa.array([_bytes(text) for text in texts], pa.binary()).view(pa.string())
    return pa.table({name: column, **{key: [value] * len(texts) for key, value in more.items()}})


def _parquet(texts: list[Any], **options: Any) -> bytes:
    made = io.BytesIO()
    pa.parquet.write_table(_table(texts, **options), made, compression="none", use_dictionary=False)
    return made.getvalue()


def _warc(texts: list[Any], **_: Any) -> bytes:
    return b"".join(warc_record("conversion", f"n{n}", _bytes(text)) for n, text in enumerate(texts))


MAKERS: Final[dict[str, Callable[..., bytes]]] = {
    "text": lambda texts, **_: b" ".join(map(_bytes, texts)),
    "lines": _lines,
    "JSON lines": lambda texts, **more: _lines(_objects(texts, **more)),
    "JSON": lambda texts, **more: b"[\n" + b",\n".join(_objects(texts, **more)) + b"\n]\n",
    "csv, tsv": _csv,
    "parquet": _parquet,
    "Arrow": lambda texts, **more: arrow(_table(texts, **more), pa.ipc.new_file),
    "WARC": _warc,
}
SUFFIXES: Final = dict(
    zip(MAKERS, (".txt", ".txt", ".jsonl", ".json", ".csv", ".parquet", ".arrow", ".warc"), strict=True)
)
FAULTS: Final = {
    "JSON lines": (b'"two"', b'"two'),
    "JSON": (b'"two"', b'"two'),
    "csv, tsv": (b"\ntwo", b'\n"two'),
    "parquet": (b"\3\0\0\0two", b"\xff\xff\xff\x7ftwo"),
    "Arrow": (b"\3\0\0\0\6\0\0\0", b"\3\0\0\0\xff\xff\xff\x7f"),
    "WARC": (b"Content-Length: 3\r\n\r\ntwo", b"Content-Length: 9\r\n\r\ntwo"),
}
"""What is put in the place of what, so that the second row is none."""


class BadContent(NamedTuple):
    change: Callable[[str, Callable[..., bytes]], bytes]  # makes the file of a format, of what writes such files
    never: frozenset[str] = frozenset()  # formats that cannot have it
    options: Mapping[str, Any] = {}
    second: str = "two"  # the text of the second row


WIDE: Final = frozenset({"parquet", "Arrow", "WARC"})  # formats that say themselves what their characters are
PLAIN: Final = frozenset({"text", "lines"})
BAD: Final = {
    "cut off": BadContent(lambda _, write: write(WORDS)[: -9 if len(write(WORDS)) > 60 else -3]),
    "a row that is none": BadContent(lambda kind, write: write(WORDS).replace(*FAULTS[kind], 1), PLAIN),
    "bytes that are no character": BadContent(lambda _, write: write(["one", ODD, "three"])),
    "UTF-16 with a mark": BadContent(lambda _, write: write(WORDS).decode().encode("utf-16"), WIDE),
    "another encoding, named": BadContent(
        lambda _, write: write(["one", "tw\xf6", "three"]).decode().encode("latin-1"),
        WIDE,
        {"encoding": "latin-1"},
        "tw\xf6",
    ),
    "NUL bytes": BadContent(lambda _, write: write(["one", "t\0o", "three"]), second="t\0o"),
    "longer than `max_record_bytes`": BadContent(lambda _, write: write(["one", "x" * 9000, "three"])),
    "another name for the text": BadContent(lambda _, write: write(WORDS, name="body"), PLAIN | {"WARC"}),
    "NaN in a carried field": BadContent(
        lambda _, write: write(WORDS, n=float("nan")), PLAIN | {"WARC"}, {"metadata_fields": ["n"]}
    ),
    "compressed, under another name": BadContent(lambda _, write: gzip.compress(write(WORDS))),
    "a name that says nothing": BadContent(lambda _, write: write(WORDS, id="a")),
}


def outcome(kind: str, bad: str, folder: Path) -> str:
    content = BAD[bad]
    if kind in content.never:
        return "-"
    path = folder / ("wiki_00" if bad == "a name that says nothing" else f"a{SUFFIXES[kind]}")
    path.write_bytes(content.change(kind, MAKERS[kind]))
    choice: Choice = "lines" if kind == "lines" else "auto"
    found = found_in(reading_of(Settings(max_record_bytes=5000), choice, **content.options), path)
    texts = [item.text for item in found if isinstance(item, Item)]
    refused = [one for one in found if isinstance(one, Refused)]
    if any(one.broken for one in refused):
        assert texts == WORDS[: len(texts)]
        return "ends"
    if refused:
        assert len(texts) + len(refused) == (len(WORDS) if refused[0].row else 1)
        return "row" if refused[0].row else "file"
    given = [WORDS[0], content.second, WORDS[2]]
    return "read" if texts in (given, [" ".join(given)]) else "unseen"


def test_the_page_says_what_becomes_of_bad_content(tmp_path: Path) -> None:
    _, *formats = _cells(next(line for line in PAGE.splitlines() if line.startswith("| bad content")))
    told = {bad: dict(zip(formats, row, strict=True)) for bad, *row in map(_cells, PAGE.splitlines()) if bad in BAD}
    assert formats == [*MAKERS]
    assert told == {bad: {kind: outcome(kind, bad, tmp_path) for kind in MAKERS} for bad in BAD}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
