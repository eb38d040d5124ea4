"""Plain text: a file is a document, or each of its lines is."""

from collections.abc import Iterator

from ..items import Place
from .lines import read_lines
from .protocol import Entry, File, Needs, Text


def read_text(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the file as one text with its name as id; an empty file is none."""
    if start.entry:
        return
    data = file.stream.read(needs.limit + 1)
    if len(data) > needs.limit:
        yield 0, 0, needs.too_long  # no number, for it has no lines
    elif data:
        yield 1, 0, Text(data, whole=True)


def read_text_lines(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield each line that is not blank as a text."""
    for number, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, needs.too_long if line is None else Text(line)
