"""A JSON array of any length, or objects one after the other, cut into their values without parsing them.

Only strings, brackets and line ends are looked at; each value's own bytes go on, and one that is too long is never held
in memory. What cannot be a value is refused up to the next line on which an object begins, no deeper than others began.
The usual streaming parsers build every value, and read no further behind a fault.
"""

import re
from collections.abc import Iterator
from sys import maxsize
from typing import Final

from ..items import Bad, Entry, File, Needs, Place

BLOCK: Final = 1 << 20
MAX_NESTING: Final = 1024
"""Brackets that may be open at once: orjson reads no more, so a deeper value is no use to anybody."""
_TOKEN: Final = re.compile(rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"|["{}\[\],]')
"""A whole string, or a bracket, a comma, or the start of a string that ends elsewhere."""
_REST_OF_STRING: Final = re.compile(rb'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+(?P<end>"|\\?\n)?+')
_LINE: Final = re.compile(rb"\n(?:\xef\xbb\xbf)?\x1e?(?P<indent>[ \t]*+)(?=[{\[])")
_BOM: Final = b"\xef\xbb\xbf"
_SPACES: Final = b" \t\r\n,\x1e"  # the last one in JSON text sequences (RFC 7464)
_BETWEEN: Final = _SPACES + _BOM
"""What may be between two values; joined files each begin with a mark, and its bytes alone are a fault."""
_NO_OBJECT: Final = "no JSON object begins here; if this is no JSON, say what it is: --format"
_OPENED_BY: Final = {b"}": ord("{"), b"]": ord("[")}
_MOST_AGAIN: Final = 4
"""Bytes looked at again behind faults, for each byte of the file before: endless brackets cost no more."""


def read_json(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the elements of the array that the file is, or the objects that follow one another in it."""
    scan = _Scan(needs)
    number = 0
    ended = False
    while not ended:
        block = file.stream.read1(BLOCK)
        ended = not block
        for value in scan.values(block, ended=ended):
            number += 1
            if number > start.entry:
                yield number, 0, value


class _Scan:
    """Finds where values begin and end, block by block; what it finds does not depend on where blocks end."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._held = b""
        self._offset = 0  # of what is held, within the file
        self._begin = 0  # of what was not yielded yet, within what is held
        self._at = 0  # up to where it was looked at
        self._lost = False  # what was not yielded yet is too long, and its beginning is not held any more
        self._found = False  # whether there was any object
        self._in_array = False
        self._open = bytearray()  # brackets, within a value
        self._in_string = False
        self._indent = 0  # of values that begin a line: what begins deeper is within another value
        self._fault: Bad | None = None
        self._deepest = 0  # behind it, a value begins with no more spaces
        self._search = 0  # from where on the next value is looked for behind a fault
        self._again = 0  # bytes that were looked at again behind faults

    def values(self, block: bytes, *, ended: bool) -> Iterator[bytes | Bad]:
        self._held += block
        while (found := self._next(ended=ended)) is not None:
            if found != b"":
                yield found
        if len(self._held) - self._begin > self._needs.limit + BLOCK:
            self._forget()
        self._offset += self._begin
        self._held, self._at = self._held[self._begin :], self._at - self._begin
        self._search = max(0, self._search - self._begin)
        self._begin = 0

    def _forget(self) -> None:
        """Let go of what is too long, and of all spaces before it; of a value, all that is needed is how it goes on."""
        first = self._first()
        if len(self._held) - first > self._needs.limit + BLOCK:
            self._lost = True
            self._begin = self._search if self._fault else max(first, self._last(self._at))
        else:
            self._begin = max(self._begin, self._held.rfind(b"\n", self._begin, first))

    def _first(self) -> int:
        first = self._begin
        while first < len(self._held) and self._held[first] in _BETWEEN:
            first += 1
        return first

    def _last(self, end: int) -> int:
        """Return where the last byte before a place is that is no space; less than `_begin` where there is none."""
        last = end - 1
        while last >= self._begin and self._held[last] in b" \t\r\n":
            last -= 1
        return last

    def _next(self, *, ended: bool) -> bytes | Bad | None:
        """Return the next value or fault; nothing (``b""``) where it went on without one; None: it cannot go on."""
        if self._fault is not None:
            return self._passed(self._fault, ended=ended)
        if self._in_string:
            rest = _REST_OF_STRING.match(self._held, self._at)
            self._at = rest.end() if rest else self._at
            if rest is None or rest["end"] is None:
                return self._unfinished() if ended else None
            self._in_string = False
            return b"" if rest["end"] == b'"' else self._refuse("a string has no end on its line")
        found = _TOKEN.search(self._held, self._at)
        if found is None:
            self._at = len(self._held)
            return self._unfinished() if ended else None
        self._at = found.end()
        return self._taken(found[0], found.start())

    def _taken(self, token: bytes, start: int) -> bytes | Bad:
        if token in (b"{", b"["):
            return self._opened(token, start)
        if token in (b"}", b"]"):
            return self._closed(token, start)
        if token == b"," and self._in_array and not self._open:
            return self._value(start)
        self._in_string = token == b'"'
        return b""

    def _closed(self, token: bytes, start: int) -> bytes | Bad:
        if not self._open and self._in_array and token == b"]":
            self._in_array = False
            return self._value(start)
        if not self._open or self._open.pop() != _OPENED_BY[token]:
            return self._refuse("a bracket closes that was not opened")
        return b"" if self._open else self._value(self._at)

    def _opened(self, token: bytes, start: int) -> bytes | Bad:
        if self._open:
            last = self._last(start)
            if last >= self._begin and self._held[last] not in (b":" if self._open.endswith(b"{") else b",["):
                return self._refuse("a bracket opens where none can be", start)
        else:
            if self._lost or self._held[self._begin : start].replace(_BOM, b"").strip(_SPACES):
                return self._refuse(_NO_OBJECT, start)
            self._indent = max(self._indent, self._column(start))
            if token == b"[" and not self._in_array:
                self._in_array, self._indent, self._begin = True, max(self._indent, 1), self._at
                return b""
        self._open += token
        if len(self._open) > MAX_NESTING:
            self._refuse(f"the JSON is nested deeper than {MAX_NESTING:,} brackets")
            self._search = self._at
        return b""

    def _value(self, end: int) -> bytes | Bad:
        self._indent = max(self._indent, self._column(self._first()))
        value = self._cut(end)
        self._found = self._found or value is None or value.startswith(b"{")
        self._begin = self._at
        return self._needs.too_long if value is None else value

    def _cut(self, end: int) -> bytes | None:
        """Return what was not yielded yet, without what stands between values; None where it is too long."""
        found = self._held[self._begin : end].lstrip(_BETWEEN)
        long, self._lost = self._lost or len(found) > self._needs.limit, False
        return None if long else found.rstrip(_BETWEEN)

    def _refuse(self, why: str, edge: int | None = None, *, broken: bool = False) -> bytes:
        """Pass over what was not yielded yet, up to the next line on which a value may begin."""
        self._fault = Bad(why, broken=broken)
        self._search = self._first()
        long = self._lost or self._at - self._search > self._needs.limit
        begins = self._held[self._search : self._search + 1] in (b"{", b"[")
        self._deepest = self._indent if self._found or begins or long else maxsize
        if long:  # its lines may not be held any more
            edge = self._at if edge is None else edge
            line = self._held.rfind(b"\n", self._last(edge) + 1, edge)
            self._search = edge if line < 0 else line
        return b""

    def _column(self, at: int) -> int:
        """Return how many spaces are before a place on its line; 0 where there is anything else."""
        line = max(self._last(at), self._begin - 1) + 1
        return at - 1 - self._held.rfind(b"\n", line, at) if b"\n" in self._held[line:at] else 0

    def _passed(self, fault: Bad, *, ended: bool) -> Bad | None:
        """Return the fault with all that it takes; None where it may take more."""
        for line in _LINE.finditer(self._held, self._search):
            again = max(0, self._at - line.end())
            if len(line["indent"]) > self._deepest or self._again + again > _MOST_AGAIN * (self._offset + self._at):
                continue
            self._again += again
            return self._passed_to(line.start() + 1, fault._replace(broken=False))
        if ended:
            self._in_array = False
            return self._passed_to(len(self._held), fault._replace(broken=fault.broken or not self._found))
        self._search = max(self._search, self._held.rfind(b"\n"))
        return None

    def _passed_to(self, end: int, fault: Bad) -> Bad:
        data = self._cut(end) or b""
        self._begin = self._at = end
        self._in_string, self._fault = False, None
        self._open.clear()
        return fault._replace(data=data)

    def _unfinished(self) -> bytes | Bad | None:
        if self._open or self._in_string:
            return self._refuse("the JSON is cut off: a bracket is not closed", broken=True)
        if self._in_array:
            self._in_array = False
            return self._passed_to(self._at, Bad("the JSON is cut off: a bracket is not closed", broken=True))
        if self._lost or self._held[self._begin :].replace(_BOM, b"").strip(_SPACES):
            return self._refuse(_NO_OBJECT)
        return None
