"""Plain text: a file is a document, or each of its lines is."""

from collections.abc import Iterator

from ..items import Place
from ..recoding import UTF_8, why_not
from .lines import read_lines
from .protocol import Bad, Entry, File, Needs, Text


def read_text(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the file as one text with its name as id; an empty file is none."""
    if start.entry:
        return
    data = file.stream.read(needs.limit + 1)
    if len(data) > needs.limit:
        yield 0, 0, needs.too_long  # no number, for it has no lines
    elif data:
        text = _text(file, data, whole=True)
        yield 0 if isinstance(text, Bad) else 1, 0, text


def read_text_lines(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield each line that is not blank as a text."""
    for number, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, needs.too_long if line is None else _text(file, line)


def _text(file: File, data: bytes, *, whole: bool = False) -> Text | Bad:
    """Return the text; where it was recoded, once it is sure that all of its characters were such."""
    if file.encoding != UTF_8:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return Bad(why_not(file.encoding, data, error))
    return Text(data, whole)
