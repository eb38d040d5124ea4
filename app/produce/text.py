"""Plain text: a file is a document, or each of its lines is."""

from collections.abc import Iterator
from typing import BinaryIO

from .items import Item, Options, Refused
from .lines import read_lines


def read_text(stream: BinaryIO, name: str, options: Options) -> Iterator[Item | Refused]:
    """Yield the file as one document with its name as id; an empty file is none."""
    data = stream.read(options.max_record_bytes + 1)
    if len(data) > options.max_record_bytes:
        yield options.too_long(name)
    elif data:
        yield options.text_item(name, name, data)


def read_text_lines(stream: BinaryIO, name: str, options: Options) -> Iterator[Item | Refused]:
    """Yield each line that is not blank as a document with the id ``name:line``."""
    for line in read_lines(stream, options.max_record_bytes):
        where = f"{name}:{line.number}"
        yield options.too_long(where) if line.too_long else options.text_item(where, where, line.data)
