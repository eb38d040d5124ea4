"""Web archives, WARC and WET: each record is found by itself, so that one that is damaged is refused alone."""

import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Final, NamedTuple

from ..encodings import BUFFER_BYTES, DAMAGE
from ..items import Bad, Content, Entry, File, Needs, Place
from .web_pages import HEAD_BYTES, fields_of, page_text

PAGES: Final = ("conversion", "resource", "response")
"""Types of the records that hold a page ..."""
ABOUT: Final = ("warcinfo", "request", "metadata", "revisit")
"""... or are about pages, or about the archive. A damaged type is neither."""
_VERSION: Final = re.compile(rb"(?:\r?\n)*WARC/[01]\.")
_END: Final = re.compile(rb"\r\n\r\n|(?:\r?\n)*(?:WARC/[01]\.|\Z)")
"""What follows a record: two line ends, or less where another program wrote the archive."""
_NEXT: Final = re.compile(rb"WARC/[01]\.[0-9]{1,2}\r?\n(?:WARC-|Content-)", re.IGNORECASE)
"""What a record begins with, even where the one before it was cut off within a line."""
_NEXT_BYTES: Final = 32
"""Enough for it."""
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")


def read_warc(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the records that hold a page; an entry's number counts all records, and each stretch that is none.

    A row has ``id`` (WARC-Record-ID), ``text``, ``url`` and ``date``. Of an HTML page it is the main text, where that
    is wanted (`Needs.extract`). A page of any other type than plain text is `Bad`.
    """
    for number, found in enumerate(_records(_Ahead(file.stream), needs), 1):
        if number > start.entry:
            content = _content(found, needs) if isinstance(found, _Record) else found
            if content is not None:
                yield number, 0, content


class _Record(NamedTuple):
    head: dict[str, str]
    block: bytes | None
    """What follows the head; None: it is longer than a record may be."""


class _Ahead:
    """A stream of which some bytes were read ahead: what is there comes before any error in what follows."""

    def __init__(self, stream: "BufferedReader[Any]") -> None:
        self._stream = stream
        self._error: BaseException | None = None
        self.held = bytearray()
        self.ended = False

    def hold(self, size: int) -> bool:
        """Read on until so many bytes are held; return whether there are so many."""
        while len(self.held) < size and not self.ended:
            try:
                piece = self._stream.read1(BUFFER_BYTES)
            except DAMAGE as error:
                self._error, piece = error, b""
            self.held += piece
            self.ended = not piece
        return len(self.held) >= size

    def drop(self, size: int) -> bytes:
        """Return so many of the held bytes, and hold them no longer."""
        dropped = bytes(self.held[:size])
        del self.held[:size]
        return dropped

    def raise_if_damaged(self) -> None:
        """Raise the error at which reading ended, if it did."""
        if self._error is not None:
            raise self._error


def _records(ahead: _Ahead, needs: Needs) -> Iterator[_Record | Bad]:
    while ahead.hold(HEAD_BYTES) or ahead.held.strip(b"\r\n"):
        try:
            found: _Record | Bad = _record(ahead, needs)
        except ValueError as error:
            found = _passed(ahead, needs, str(error))
            if found.broken:
                ahead.raise_if_damaged()
        yield found
    ahead.raise_if_damaged()


def _record(ahead: _Ahead, needs: Needs) -> _Record | Bad:
    """Take the record that comes next; `ValueError` where none does."""
    version = _VERSION.match(ahead.held)
    if version is None:
        raise ValueError("no WARC record begins here")
    head_end = _HEAD_END.search(ahead.held, version.end(), HEAD_BYTES)
    if head_end is None or _NEXT.search(ahead.held, version.end(), head_end.end()):
        raise ValueError("the head of a WARC record has no end")
    head = fields_of(bytes(ahead.held[version.end() : head_end.start()]))
    length = head.get("content-length", "")
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise ValueError(f"a WARC record without a length (Content-Length: {length[:20]!r})")
    begin, end = head_end.end(), head_end.end() + int(length)
    if int(length) > needs.limit + HEAD_BYTES:
        return _long(ahead, head, begin, int(length))
    if not ahead.hold(end):
        raise ValueError("the record is cut off, or its Content-Length is wrong")
    ahead.hold(end + _NEXT_BYTES)
    if not _END.match(ahead.held, end):
        raise ValueError(f"what follows is no WARC record: is Content-Length {length} wrong?")
    return _Record(head, ahead.drop(end)[begin:])


def _passed(ahead: _Ahead, needs: Needs, why: str) -> Bad:
    """Pass over all up to the next record, or to the end, and return it as refused."""
    data: bytearray | None = bytearray()
    own = _VERSION.match(ahead.held)
    begin = own.end() if own else 0
    while True:
        found = _NEXT.search(ahead.held, begin)
        size = found.start() if found else len(ahead.held) if ahead.ended else len(ahead.held) - _NEXT_BYTES
        passed = ahead.drop(max(0, size))
        data = None if data is None or len(data) + len(passed) > needs.limit else data + passed
        if found or (ahead.ended and not ahead.held):
            return Bad(why, bytes(data or b""), broken=found is None)
        begin = 0
        ahead.hold(BUFFER_BYTES)


def _long(ahead: _Ahead, head: dict[str, str], begin: int, length: int) -> _Record | Bad:
    """Pass over a record that is too long to be held; it ends where the next one begins, if that is sooner."""
    ahead.drop(begin)
    while length:
        ahead.hold(min(length, BUFFER_BYTES) + _NEXT_BYTES)
        if not ahead.held:
            return Bad("the record is cut off, or its Content-Length is wrong", broken=True)
        found = _NEXT.search(ahead.held)
        size = found.start() if found else max(1, len(ahead.held) - _NEXT_BYTES)
        if found and size < length:
            ahead.drop(size)
            return Bad("another WARC record begins within this one: its Content-Length is wrong")
        length -= len(ahead.drop(min(size, length)))
    return _Record(head, None)


def _content(record: _Record, needs: Needs) -> Content:
    head = record.head
    kind = head.get("warc-type", "").lower()
    if kind in ABOUT:
        return None
    if kind not in PAGES:
        return Bad(f"a record of the type {kind[:20]!r}, which is not read", record.block or b"")
    if record.block is None:
        return needs.too_long
    text = page_text(head.get("content-type", ""), record.block, needs)
    if isinstance(text, Bad):
        return text
    return {
        "id": head.get("warc-record-id", "").strip("<>"),
        "text": text,
        "url": head.get("warc-target-uri"),
        "date": head.get("warc-date"),
    }
