"""Text files: one document each, or one in each line; JSON lines."""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, Final, NamedTuple

from ..encodings import BUFFER_BYTES, UTF_8, why_not
from ..items import Bad, Entry, File, Needs, Place, Text

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
        yield from _separated(file, needs, start, needs.separator.encode())
        return
    yield from read_whole(file, needs, start, partial(_text, file, whole=True))


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
