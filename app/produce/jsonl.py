"""JSON lines: every line is a document, sent byte for byte as it stands."""

from collections.abc import Iterator
from typing import BinaryIO

from .items import Item, Options, Refused
from .lines import read_lines


def read_jsonl(stream: BinaryIO, name: str, options: Options) -> Iterator[Item | Refused]:
    """Yield every line that the mill will take as an object with a text, and a refusal for every other."""
    for line in read_lines(stream, options.max_record_bytes):
        where = f"{name}:{line.number}"
        yield options.too_long(where) if line.too_long else options.object_item(where, line.data)
