"""Lines of a file of any size, in bounded memory."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple


class Line(NamedTuple):
    """One line."""

    number: int
    """From 1."""
    data: bytes
    """Without its end (``\\n`` or ``\\r\\n``); empty if it was too long."""
    too_long: bool


def read_lines(stream: BinaryIO, limit: int) -> Iterator[Line]:
    """Yield the lines that are not blank; one of more than ``limit`` bytes is passed over and yielded as too long."""
    number = 0
    while data := stream.readline(limit + 2):
        number += 1
        body = data.rstrip(b"\r\n")
        if len(body) > limit or (not data.endswith(b"\n") and len(data) > limit):
            _skip_rest(stream, data, limit)
            yield Line(number, b"", too_long=True)
        elif body and not body.isspace():
            yield Line(number, body, too_long=False)


def _skip_rest(stream: BinaryIO, data: bytes, limit: int) -> None:
    while data and not data.endswith(b"\n"):
        data = stream.readline(limit + 2)
