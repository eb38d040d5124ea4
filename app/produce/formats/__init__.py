"""Ways to read documents: each format is a module with one function behind `Format`, and a line in `FORMATS` here."""

from typing import Final, Literal, get_args

from .arrow import read_arrow
from .json_values import read_json
from .jsonl import read_jsonl
from .parquet import read_parquet
from .protocol import Bad, Content, Entry, File, Format, Needs, Text
from .tables import read_csv, read_tsv
from .text import read_text, read_text_lines
from .warc import read_warc

Choice = Literal["auto", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "warc", "text", "lines"]
CHOICES: Final[tuple[str, ...]] = get_args(Choice)

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
}
BY_SUFFIX: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".warc": "warc",
    ".wet": "warc",
}
"""Any other file is tried as text."""


def format_for(suffix: str, choice: Choice) -> Format:
    """Return how to read a file by its suffix (without one of a compression) and what somebody asks for.

    ``auto`` takes it from the suffix; ``lines`` does as well, and reads any other text line by line; everything else
    is what is said.
    """
    if choice not in ("auto", "lines"):
        return BY_CHOICE[choice]
    other = "lines" if choice == "lines" else "text"
    return BY_CHOICE[BY_SUFFIX.get(suffix.lower(), other)]


__all__ = ["BY_SUFFIX", "CHOICES", "Bad", "Choice", "Content", "Entry", "File", "Format", "Needs", "Text", "format_for"]
