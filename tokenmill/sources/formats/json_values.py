"""A JSON array of any length, or objects one after the other, cut into their values without parsing them.

The usual streaming parsers build every value, whatever its size, and lose what JSON can say and Python cannot. Here
only strings and brackets are looked at; each value's own bytes go on, and one that is too long is never held in memory.
"""

import re
from collections.abc import Iterator
from typing import Final

from tokenmill.sources.items import Bad, Entry, File, Needs, Place

BLOCK: Final = 1 << 20
"""Bytes read at once."""
MAX_NESTING: Final = 1024
"""Brackets that may be open at once: orjson reads no more, so a deeper value is no use to anybody. The rest of
its file is not read: to find the end of gigabytes of brackets would take far longer than to decompress them."""
_STRUCTURE: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\],]', re.DOTALL)
"""A whole string, or a bracket, a comma, or the start of a string that ends in another block."""
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
_BOM: Final = b"\xef\xbb\xbf"


def read_json(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the elements of the array that the file is, or the objects that follow one another in it."""
    scan = _Scan(needs.limit)
    number = 0
    while block := file.stream.read1(BLOCK):
        for value in scan.values(block):
            number += 1
            if number > start.entry:
                yield number, 0, needs.too_long if value is None else value
        if scan.fault:
            break
    if why := scan.fault or scan.unfinished:
        yield number + 1, 0, Bad(why, broken=True)


class _Scan:
    """Finds where values begin and end, block by block."""

    def __init__(self, limit: int) -> None:
        self.fault = ""
        self._limit = limit
        self._base = -1  # depth of the values: 1 in an array, 0 for objects one after the other, -1 not known yet
        self._depth = 0
        self._in_string = False
        self._left = b""  # a backslash whose second half is in the next block
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def unfinished(self) -> str:
        """Why the file cannot end here; nothing if it can."""
        if self._base < 0:
            return ""
        if self._depth or self._in_string or b"".join(self._parts).strip():
            return "the JSON is cut off: a bracket is not closed"
        return ""

    def values(self, block: bytes) -> Iterator[bytes | None]:
        """Yield the values that end in this block; None for one that is too long."""
        block = self._left + block
        position = start = 0
        if self._base < 0:
            position = start = self._begin(block)
        while position < len(block) and not self.fault:
            if self._in_string:
                rest = _REST_OF_STRING.match(block, position)
                position = rest.end() if rest else position
                if rest is None or not rest[1]:
                    break  # the block's end, or a backslash before it
                self._in_string = False
                continue
            found = _STRUCTURE.search(block, position)
            if found is None:
                position = len(block)
                break
            position = found.end()
            if self._ends_value(found[0]):
                whole = self._take(block[start : position - self._base])
                start = position
                if whole != b"":
                    yield whole
        self._left = block[position:] if self._in_string else b""
        self._keep(block[start : len(block) - len(self._left)])

    def _begin(self, block: bytes) -> int:
        """Look at the first character; return where the values begin."""
        text = block.removeprefix(_BOM).lstrip()
        if not text:
            return len(block)
        self._base = 1 if text.startswith(b"[") else 0
        if text[:1] not in (b"[", b"{"):
            self.fault = "no JSON array and no JSON object; say what it is: --format"
        self._depth = self._base
        return len(block) - len(text) + self._base

    def _ends_value(self, token: bytes) -> bool:
        """Take a token; return whether a value ends with it (an object) or before it (an element)."""
        if token in (b"{", b"["):
            if self._base == 1 and self._depth == 0:
                self.fault = "something follows the end of the array; is it JSON lines? --format jsonl"
            self._depth += 1
            if self._depth - self._base > MAX_NESTING:
                self.fault = f"the JSON is nested deeper than {MAX_NESTING:,} brackets; nothing from here on is read"
        elif token in (b"}", b"]"):
            self._depth -= 1
            if self._depth < 0:
                self.fault = "a bracket closes that was never opened"
            return self._depth == 0
        elif token == b",":
            return self._base == 1 and self._depth == 1
        elif token == b'"':
            self._in_string = True
        return False

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._limit + BLOCK:
            self._parts.append(part)
        else:
            self._parts = []

    def _take(self, part: bytes) -> bytes | None:
        self._keep(part)
        value = b"".join(self._parts).strip() if self._size <= self._limit + BLOCK else None
        self._parts, self._size = [], 0
        return None if value is not None and len(value) > self._limit else value
