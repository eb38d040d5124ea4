"""Ways to read documents: each format is one function behind `Format`, and a line in `BY_CHOICE` here."""

from collections.abc import Iterable
from typing import Final, Literal

from ..items import Format, library
from .columnar import read_arrow, read_parquet
from .json_values import read_json
from .text import read_csv, read_jsonl, read_text, read_text_lines, read_tsv
from .web_pages import read_page, read_warc

Choice = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "warc", "text", "lines"]

BY_CHOICE: Final[dict[str, Format]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "warc": read_warc,
    "text": read_text,
    "lines": read_text_lines,
    "html": read_page,
}
BY_SUFFIX: Final = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".warc", ".wet"), "warc"),
}
"""Any other file is what its content says (`app.sources.contents`)."""
LIBRARIES: Final = {
    "parquet": ("pyarrow.parquet", "produce", "reading parquet"),
    "arrow": ("pyarrow.ipc", "produce", "reading Arrow files"),
    "warc": ("brotli", "produce", "reading WARC and WET"),
}
"""Libraries that are checked before a run begins, so that it does not end in the middle for lack of one."""


def kind_of(suffix: str, choice: Choice) -> str:
    """Return the kind of a file, a key of `BY_CHOICE`: the choice, or by suffix if that is ``auto`` or ``lines``."""
    return choice if choice not in ("auto", "lines") else BY_SUFFIX.get(suffix.lower(), "")


def require(kinds: Iterable[str]) -> None:
    """Check that these kinds of files can be read. Raises InputError where a library is missing."""
    for kind in sorted(set(kinds) & set(LIBRARIES)):
        library(*LIBRARIES[kind])
