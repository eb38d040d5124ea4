"""JSON lines: every line is an object."""

from collections.abc import Iterator

from ..items import Place
from .lines import read_lines
from .protocol import Entry, File, Needs


def read_jsonl(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield every line that is not blank."""
    too_long = needs.too_long
    for number, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, too_long if line is None else line
