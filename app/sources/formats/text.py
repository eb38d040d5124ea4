"""Text files: one document each, or one in each line; JSON lines; tables (csv, tsv) whose first line names columns.

What cannot be a row of a table, on one line or several, is refused with its first line alone; the next line begins the
next row.
"""

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import SEEK_CUR, BufferedReader, BytesIO
from typing import Any, BinaryIO, Final, NamedTuple

from ..encodings import BUFFER_BYTES, UTF_8, Made, pieces_of, why_no_text, why_not
from ..items import Bad, Entry, File, Format, Needs, Place, Text

LOOK_BYTES: Final = 64 << 10


class Line(NamedTuple):
    """A line that is not blank."""

    number: int
    begin: int
    end: int
    body: bytes | None


def read_lines(stream: BinaryIO, limit: int, start: Place | None = None) -> Iterator[Line]:
    """Yield the lines behind ``start`` that are not blank, without ends; of one over ``limit`` bytes no body."""
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


def line_start(descriptor: int, at: int) -> int:
    """Return where the first line begins at or after a byte; the end of the file where none does."""
    if not at:
        return 0
    at -= 1
    while piece := os.pread(descriptor, LOOK_BYTES, at):
        found = piece.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(piece)
    return at


def lines_between(descriptor: int, start: int, stop: int) -> int:
    """Return how many lines there are between two of their beginnings."""
    count, last = 0, b"\n"
    while start < stop and (piece := os.pread(descriptor, min(BUFFER_BYTES, stop - start), start)):
        count += piece.count(b"\n")
        last, start = piece[-1:], start + len(piece)
    return count + (last != b"\n")


def read_jsonl(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield every line that is not blank."""
    too_long = needs.too_long
    for number, _, at, line in read_lines(file.stream, needs.limit, start):
        yield number, at, too_long if line is None else line


def read_text(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the file as one text with its name as id, or each of its texts; an empty one is none."""
    if needs.separator is not None:
        return _separated(file, needs, start, needs.separator.encode())
    return read_whole(file, needs, start, partial(_text, file, whole=True))


def read_whole(file: File, needs: Needs, start: Place, make: Callable[[bytes], Text | Bad]) -> Iterator[Entry]:
    """Yield what is made of all bytes of a file; nothing of one without any but blanks."""
    if start.entry:
        return
    data = file.stream.read(needs.limit + 1)
    if len(data) > needs.limit:
        yield 0, 0, needs.too_long  # no number, for it has no lines
    elif data.strip(b"\xef\xbb\xbf \t\r\n"):
        text = make(data)
        yield 0 if isinstance(text, Bad) else 1, 0, text


def _separated(file: File, needs: Needs, start: Place, separator: bytes) -> Iterator[Entry]:
    r"""Yield what is between the separators, without line ends around it, numbered from 1; ``\n`` is any line end."""
    pattern = re.compile(re.escape(separator).replace(b"\\\n", rb"\r?\n"))
    number, at = start
    if at:
        file.stream.seek(at)
    held, searched, lost, ended = b"", 0, False, False
    while not ended:
        piece = file.stream.read1(BUFFER_BYTES)
        held, begin, ended = held + piece, 0, not piece
        while found := pattern.search(held, searched):
            number += 1
            yield number, at + found.end(), _between(file, needs, held[begin : found.start()], lost=lost)
            begin, searched, lost = found.end(), found.end(), False
        if ended and (lost or held[begin:].strip()):
            yield number + 1, at + len(held), _between(file, needs, held[begin:], lost=lost)
        lost = lost or len(held) - begin > needs.limit + BUFFER_BYTES
        begin = max(begin, len(held) - 2 * len(separator)) if lost else begin  # a separator may be cut here
        at, held = at + begin, held[begin:]
        searched = max(0, searched - begin, len(held) - 2 * len(separator))


def _between(file: File, needs: Needs, data: bytes, *, lost: bool) -> Text | Bad | None:
    data = data.strip(b"\r\n")
    if lost or len(data) > needs.limit:
        return needs.too_long
    return _text(file, data) if data.strip() else None


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


_OTHERS: Final = (";", "\t", "|", ",")
"""Delimiters that tables have. None is guessed: where a text has one by chance, a table would be read as another."""
_SAYS_DELIMITER: Final = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([\t -!#-~])"?[\r\n]', re.IGNORECASE)
"""A first line by which spreadsheets say what the delimiter is."""
_FIRST_LINE: Final = 1 << 16
"""Bytes within which the first line of a table ends whose lines end with a carriage return alone."""
_MOST_AGAIN: Final = 4
"""Bytes read again behind quotes that are not closed, for each byte of the file before; then a row has one line."""


def _read(file: File, needs: Needs, start: Place, *, tabs: bool) -> Iterator[Entry]:
    """Yield the rows; an entry's number is that of its last line, and of what is no row, that of its first."""
    table = _Table(file, needs, tabs=tabs)
    names: list[str] | None = None
    if table.delimiter in (needs.quote, needs.escape):
        why = f"its delimiter, {table.delimiter!a}, cannot be the one of --quote or --escape as well"
        yield 0, 0, Bad(why, broken=True)
        return
    for row in table.rows():
        if names is None and row:
            found = _names(row, needs, table.delimiter)
            if isinstance(found, Bad):
                if table.number > start.entry:
                    yield table.number, 0, found
                return
            names = found
            table.pass_to(file.begin)
        elif names and row and table.number > start.entry:
            yield table.number, 0, row if isinstance(row, Bad) else table.content(names, row)


def table_kind(begin: bytes, needs: Needs) -> str:
    """Return the kind of the table that begins so; nothing where its first line does not name the text's column."""
    if _SAYS_DELIMITER.match(begin):
        return "csv"
    line, ended, _ = begin.lstrip(b"\xef\xbb\xbf\r\n").replace(b"\r", b"\n").partition(b"\n")
    for delimiter in [needs.delimiter] if needs.delimiter else _OTHERS:
        with suppress(csv.Error, ValueError):  # a row that is none; a delimiter that is the quote as well
            names = next(_reader([line.decode()], delimiter, needs), [])
            if ended and len(names) > 1 and needs.names_text(names):
                return "tsv" if delimiter == "\t" else "csv"
    return ""


def _reader(lines: Iterable[str], delimiter: str, needs: Needs) -> Iterator[list[str]]:
    quoting: dict[str, Any] = {"quotechar": needs.quote} if needs.quote else {"quoting": csv.QUOTE_NONE}
    return csv.reader(lines, delimiter=delimiter, strict=True, escapechar=needs.escape, **quoting)


def row_ends(file: File, needs: Needs, *, tabs: bool) -> Iterator[Place]:
    """Yield where each row of a table ends, or what is none."""
    table = _Table(file, needs, tabs=tabs)
    for _ in table.rows():
        yield Place(table.number, table.at)


def _names(row: list[str] | Bad, needs: Needs, delimiter: str) -> list[str] | Bad:
    if isinstance(row, Bad):
        return row._replace(why=f"no names of columns: {row.why}", broken=True)
    bad = needs.missing(row)
    if bad is None:
        return row
    found = [other for other in _OTHERS if len(row) == 1 and other != delimiter and other in row[0]]
    advice = f"; or is the delimiter another one? --delimiter {found[0]!a}" if found else ""
    if any(map(str.isdecimal, row)):
        advice = "; or is it a row already? put a line that names the columns before it"
    return bad._replace(why=bad.why + advice)


class _NoRowError(Exception):
    """A line is longer than a record may be."""


class _Table:
    """The lines of a table for the csv reader, one row's at a time: what turned out to be no row is read again."""

    def __init__(self, file: File, needs: Needs, *, tabs: bool) -> None:
        csv.field_size_limit((1 << 31) - 1)  # for the whole process; lines bound a field already
        self.number = 0  # of the line that was read last, from 1
        self.at = 0
        self._needs = needs
        self._stream = file.stream
        self._encoding = file.encoding
        first = file.stream.readline(_FIRST_LINE)
        said = _SAYS_DELIMITER.match(first)
        self.delimiter = needs.delimiter or (said[1].decode("latin-1") if said else "\t" if tabs else ",")
        self._skipped = bool(said)
        if b"\r" in first.rstrip(b"\r\n"):
            feeds = Made(file.stream, lambda raw: (piece.replace(b"\r", b"\n") for piece in pieces_of(raw)), len(first))
            self._stream = BufferedReader(feeds, BUFFER_BYTES)
            first = first.replace(b"\r", b"\n")
        self._again = BytesIO(first)
        self._is_past = False  # whether something behind what is read again was read
        self._row = bytearray()
        self._first = 0  # bytes of the row's first line
        self._fault = ""
        self._read_again = 0
        self._furthest = 0

    def rows(self) -> Iterator[list[str] | Bad]:
        """Yield each row, an empty one for an empty line; for a line with which no row begins, why not."""
        reader = _reader(self, self.delimiter, self._needs)
        while True:
            begin, number = self.at, self.number
            self._row.clear()
            self._fault = ""
            try:
                row: list[str] | Bad | None = next(reader, None)
            except _NoRowError:
                row = self._needs.too_long
            except csv.Error as error:
                row = Bad(self._why(error), bytes(self._row[: self._first]))
                self._go_back(begin, number)
            if row is None:
                return
            if self._skipped:
                self._skipped = False
                continue
            yield Bad(self._fault, bytes(self._row)) if self._fault and not isinstance(row, Bad) else row

    def content(self, names: list[str], row: list[str]) -> dict[str, str] | Bad:
        if row[-1:] == names[-1:] and len(names) > 1 and [row[0].lstrip("\ufeff"), *row[1:]] == names:
            return Bad("the names of the columns again, as where files were joined", bytes(self._row))
        if len(row) != len(names):
            return Bad(f"{len(row)} fields, and the first line names {len(names)}", bytes(self._row))
        return dict(zip(names, row, strict=True))

    def pass_to(self, place: Place) -> None:
        if place.byte > self.at:
            self._again = BytesIO()
            self._stream.seek(place.byte)
            self.number, self.at = place

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        begins, limit = not self._row, self._needs.limit
        if not begins and self._read_again > _MOST_AGAIN * self._furthest:
            raise csv.Error("too much was read again")
        if not (data := self._piece(limit + 2)):
            raise StopIteration
        self.number += 1
        if begins:
            self._first = len(data)
        self._row += data
        if len(self._row) > limit + 2 or (len(data) > limit and not data.endswith(b"\n")):
            if not begins:
                raise csv.Error("the row is too long")
            while data and not data.endswith(b"\n"):
                data = self._piece(limit + 2)
            raise _NoRowError
        self._fault = self._fault or why_no_text(data, f"line {self.number}")
        try:
            text = data.decode()
            return text.lstrip("\ufeff") if self.number == 1 else text
        except UnicodeDecodeError as error:
            self._fault = f"{why_not(self._encoding, data, error)} of line {self.number}"
            return data.decode("utf-8", "replace")

    def _piece(self, most: int) -> bytes:
        data = self._again.readline(most)
        if not data.endswith(b"\n") and len(data) < most:
            self._is_past = True
            data += self._stream.readline(most - len(data))
        self.at += len(data)
        return data

    def _go_back(self, begin: int, number: int) -> None:
        self._furthest = max(self._furthest, self.at)
        self.at, self.number = begin + self._first, number + 1
        size = len(self._row) - self._first
        self._read_again += size
        if self._is_past:
            self._again, self._is_past = BytesIO(self._row[self._first :]), False
        else:
            self._again.seek(-size, SEEK_CUR)

    def _why(self, error: csv.Error) -> str:
        if str(error).startswith("new-line"):
            return "a carriage return within a line: quote the field, or end all lines alike"
        quote = self._needs.quote
        behind = "expected after" in str(error) and len(self._row) == self._first
        what = "a field goes on behind its closing quote" if behind else "a quote is not closed"
        escaped = self._needs.escape is None and f"\\{quote}".encode() in self._row
        backslash = "; where a backslash stands before quotes: --escape '\\'" if escaped else ""
        return f"{what}; where quotes are a part of the text: --quote none{backslash}"


read_csv: Final[Format] = partial(_read, tabs=False)
read_tsv: Final[Format] = partial(_read, tabs=True)
