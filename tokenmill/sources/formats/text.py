"""Text files: one document each, or one in each line; JSON lines; tables (csv, tsv) that name their columns."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import BinaryIO, Final, NamedTuple

from tokenmill.sources.encodings import UTF_8, why_not
from tokenmill.sources.items import Bad, Entry, File, Format, Needs, Place, Text

_MAX_FIELD: Final = (1 << 31) - 1
"""For `csv.field_size_limit`, which holds for the whole process: the lines bound a field's size already."""
_OTHERS: Final = (";", "\t", "|", ",")
"""Delimiters that tables have. None is guessed: where a text has one by chance, a table would be read as another."""


class Line(NamedTuple):
    """A line that is not blank."""

    number: int
    """From 1."""
    begin: int
    """Where it begins in the file."""
    end: int
    """Where the next one begins."""
    body: bytes | None
    """Its content."""


def read_lines(stream: BinaryIO, limit: int, start: Place | None = None) -> Iterator[Line]:
    r"""Yield the lines behind ``start`` that are not blank.

    The content is without the line's end (``\n`` or ``\r\n``). A line of more than ``limit`` bytes is passed over in
    pieces, and its content is None.
    """
    number, at = start or Place()
    if at:
        stream.seek(at)
    readline = stream.readline
    while data := readline(limit + 2):
        number += 1
        begin = at
        at += len(data)
        body = data.rstrip(b"\r\n")
        long = len(body) > limit
        while data and not data.endswith(b"\n") and (long or len(data) > limit + 1):  # it may go on, or have ended here
            data = readline(limit + 2)
            at += len(data)
            long = long or bool(data.strip(b"\r\n"))
        if long:
            yield Line(number, begin, at, None)
        elif body and not body.isspace():
            yield Line(number, begin, at, body)


def read_jsonl(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield every line that is not blank."""
    too_long = needs.too_long
    for number, _, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, too_long if line is None else line


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
    for number, _, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, needs.too_long if line is None else _text(file, line)


def _text(file: File, data: bytes, *, whole: bool = False) -> Text | Bad:
    """Return the text; where it was recoded, once it is sure that all of its characters were such."""
    if file.encoding != UTF_8:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            return Bad(why_not(file.encoding, data, error))
    return Text(data, whole)


def _read(file: File, needs: Needs, start: Place, delimiter: str) -> Iterator[Entry]:
    """Yield the rows; an entry's number is that of its last line."""
    csv.field_size_limit(_MAX_FIELD)
    lines = _Lines(file, needs.limit)
    kind, delimiter = ("tsv" if delimiter == "\t" else "csv"), needs.delimiter or delimiter
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        lines.begin_row()
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield lines.number, 0, Bad(f"no {kind} from here on: {error}", broken=True)
            return
        if lines.number > start.entry or names is None:
            yield from ((number, 0, needs.too_long) for number in lines.skipped)
        if row is None:
            return
        if names is None:
            names = row
            if bad := needs.missing(names):
                yield lines.number, 0, bad._replace(why=bad.why + _advice(names, delimiter))
                return
            lines.pass_to(file.begin)
        elif row and lines.number > start.entry:
            yield lines.number, 0, _content(names, row, lines)


def row_ends(file: File, needs: Needs, *, tabs: bool) -> Iterator[Place]:
    """Yield where each row of a table ends; none behind what `read_csv` or `read_tsv` cannot read."""
    csv.field_size_limit(_MAX_FIELD)
    lines = _Lines(file, needs.limit)
    reader = csv.reader(lines, delimiter=needs.delimiter or ("\t" if tabs else ","), strict=True)
    with suppress(csv.Error):
        while next(reader, None) is not None:
            yield lines.place
            lines.begin_row()


def _advice(names: list[str], delimiter: str) -> str:
    """Return which other delimiter the first line seems to have; nothing where it has fields with this one."""
    found = [other for other in _OTHERS if len(names) == 1 and other != delimiter and other in names[0]]
    return f"; or is the delimiter another one? --delimiter {found[0]!a}" if found else ""


def _content(names: list[str], row: list[str], lines: "_Lines") -> dict[str, str] | Bad:
    if lines.fault:
        return Bad(lines.fault)
    if len(row) != len(names):
        return Bad(f"{len(row)} fields, and the first line names {len(names)}")
    return dict(zip(names, row, strict=True))


class _Lines:
    """The lines of a row, decoded; remembers what is wrong with them."""

    def __init__(self, file: File, limit: int) -> None:
        self.number = 0
        self.fault = ""
        self.skipped: list[int] = []
        self._stream = file.stream
        self._encoding = file.encoding
        self._limit = limit
        self._row_bytes = 0
        self._at = 0

    @property
    def place(self) -> Place:
        """Where the next line begins."""
        return Place(self.number, self._at)

    def pass_to(self, place: Place) -> None:
        """Pass over all lines before a place that is the beginning of a row."""
        if place.byte > self._at:
            self._stream.seek(place.byte)
            self.number, self._at = place

    def begin_row(self) -> None:
        """Say that the next line is a row's first."""
        self.fault = ""
        self.skipped = []
        self._row_bytes = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            data = self._stream.readline(self._limit + 2)
            if not data:
                raise StopIteration
            self.number += 1
            self._at += len(data)
            self._row_bytes += len(data)
            if self._row_bytes <= self._limit + 2 and (data.endswith(b"\n") or len(data) <= self._limit):
                return self._decoded(data)
            if self._row_bytes > len(data):
                raise csv.Error(f"a field with line breaks is longer than {self._limit} bytes; is a quote missing?")
            while data and not data.endswith(b"\n"):
                data = self._stream.readline(self._limit + 2)
                self._at += len(data)
            self.skipped.append(self.number)
            self._row_bytes = 0

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            self.fault = f"{why_not(self._encoding, data, error)} of line {self.number}"
            return data.decode("utf-8", "replace")


read_csv: Final[Format] = partial(_read, delimiter=",")
read_tsv: Final[Format] = partial(_read, delimiter="\t")
