"""Lines of a file of any size, in bounded memory."""

from collections.abc import Iterator
from typing import BinaryIO

from ..items import Place


def read_lines(stream: BinaryIO, limit: int, start: Place | None = None) -> Iterator[tuple[int, int, bytes | None]]:
    r"""Yield number (from 1), end in the file, and content of the lines behind ``start`` that are not blank.

    The content is without the line's end (``\n`` or ``\r\n``). A line of more than ``limit`` bytes is passed over in
    pieces, and its content is None.
    """
    number, at = start or Place()
    if at:
        stream.seek(at)
    readline = stream.readline
    while data := readline(limit + 2):
        number += 1
        at += len(data)
        body = data.rstrip(b"\r\n")
        long = len(body) > limit
        while data and not data.endswith(b"\n") and (long or len(data) > limit + 1):  # it may go on, or have ended here
            data = readline(limit + 2)
            at += len(data)
            long = long or bool(data.strip(b"\r\n"))
        if long:
            yield number, at, None
        elif body and not body.isspace():
            yield number, at, body
