"""Bad content of every kind, in files of every format: the table of docs/produce.md says what becomes of it."""

import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from tests.app.sources.files import warc_record
from tests.app.sources.reading import found_in, reading_of
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused
from tokenmill.app.sources.formats import Choice

PAGE: Final = (Path(__file__).parents[3] / "docs" / "produce.md").read_text()
TEXTS: Final = ["one", "two", "three"]
ODD: Final = b"tw\xff"
"""No UTF-8."""


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


def _arrow(texts: list[Any], **options: Any) -> bytes:
    made, table = io.BytesIO(), _table(texts, **options)
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()


def _warc(texts: list[Any], **_: Any) -> bytes:
    pages = [warc_record("conversion", f"n{n}", "#" * len(_bytes(text))) for n, text in enumerate(texts)]
    return b"".join(
        page.replace(b"#" * len(_bytes(text)), _bytes(text)) for page, text in zip(pages, texts, strict=True)
    )


WRITERS: Final[dict[str, Callable[..., bytes]]] = {
    "text": lambda texts, **_: b" ".join(map(_bytes, texts)),
    "lines": _lines,
    "JSON lines": lambda texts, **more: _lines(_objects(texts, **more)),
    "JSON": lambda texts, **more: b"[\n" + b",\n".join(_objects(texts, **more)) + b"\n]\n",
    "csv, tsv": _csv,
    "parquet": _parquet,
    "Arrow": _arrow,
    "WARC": _warc,
}
SUFFIXES: Final = dict(
    zip(WRITERS, (".txt", ".txt", ".jsonl", ".json", ".csv", ".parquet", ".arrow", ".warc"), strict=True)
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
    change: Callable[[str, Callable[..., bytes]], bytes]
    """Makes the file of a format, of what writes such files."""
    never: frozenset[str] = frozenset()
    """Formats that cannot have it."""
    options: Mapping[str, Any] = {}
    second: str = "two"
    """The text of the second row."""


WIDE: Final = frozenset({"parquet", "Arrow", "WARC"})
"""Formats that say themselves what their characters are."""
PLAIN: Final = frozenset({"text", "lines"})
KINDS: Final = {
    "cut off": BadContent(lambda _, write: write(TEXTS)[: -9 if len(write(TEXTS)) > 60 else -3]),
    "a row that is none": BadContent(lambda kind, write: write(TEXTS).replace(*FAULTS[kind], 1), PLAIN),
    "bytes that are no character": BadContent(lambda _, write: write(["one", ODD, "three"])),
    "UTF-16 with a mark": BadContent(lambda _, write: write(TEXTS).decode().encode("utf-16"), WIDE),
    "another encoding, named": BadContent(
        lambda _, write: write(["one", "tw\xf6", "three"]).decode().encode("latin-1"),
        WIDE,
        {"encoding": "latin-1"},
        "tw\xf6",
    ),
    "NUL bytes": BadContent(lambda _, write: write(["one", "t\0o", "three"]), second="t\0o"),
    "longer than `max_record_bytes`": BadContent(lambda _, write: write(["one", "x" * 9000, "three"])),
    "another name for the text": BadContent(lambda _, write: write(TEXTS, name="body"), PLAIN | {"WARC"}),
    "NaN in a carried field": BadContent(
        lambda _, write: write(TEXTS, n=float("nan")), PLAIN | {"WARC"}, {"metadata_fields": ["n"]}
    ),
    "compressed, under another name": BadContent(lambda _, write: gzip.compress(write(TEXTS))),
    "a name that says nothing": BadContent(lambda _, write: write(TEXTS, id="a")),
}


def outcome(kind: str, bad: str, folder: Path) -> str:
    content = KINDS[bad]
    if kind in content.never:
        return "-"
    path = folder / ("wiki_00" if bad == "a name that says nothing" else f"a{SUFFIXES[kind]}")
    path.write_bytes(content.change(kind, WRITERS[kind]))
    choice: Choice = "lines" if kind == "lines" else "auto"
    found = found_in(reading_of(Settings(max_record_bytes=5000), choice, **content.options), path)
    texts = [item.text for item in found if isinstance(item, Item)]
    refused = [one for one in found if isinstance(one, Refused)]
    if any(one.broken for one in refused):
        assert texts == TEXTS[: len(texts)]
        return "ends"
    if refused:
        assert len(texts) + len(refused) == (len(TEXTS) if refused[0].row else 1)
        return "row" if refused[0].row else "file"
    given = [TEXTS[0], content.second, TEXTS[2]]
    return "read" if texts in (given, [" ".join(given)]) else "unseen"


def test_the_page_says_what_becomes_of_bad_content(tmp_path: Path) -> None:
    _, *formats = _cells(next(line for line in PAGE.splitlines() if line.startswith("| bad content")))
    told = {bad: dict(zip(formats, row, strict=True)) for bad, *row in map(_cells, PAGE.splitlines()) if bad in KINDS}
    assert formats == [*WRITERS]
    assert told == {bad: {kind: outcome(kind, bad, tmp_path) for kind in WRITERS} for bad in KINDS}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
