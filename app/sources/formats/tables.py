"""Tables of text (csv, tsv) whose first line names the columns; a row that is none harms no other.

What cannot be a row, on one line or several, is refused with its first line alone; the next line begins the next row.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import SEEK_CUR, BufferedReader, BytesIO
from typing import Any, Final

from ..encodings import BUFFER_BYTES, Made, pieces_of, why_no_text, why_not
from ..items import Bad, Entry, File, Format, Needs, Place

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
