"""Messages of Arrow, of a stream or a file: each is weighed before the library gets it.

Buffers may be compressed, and begin with how many bytes they become. The library believes that: of a kilobyte, it makes
gigabytes. (Arrow columnar format: encapsulated messages, IPC file format; flatbuffers: internals.)
"""

import struct
from collections.abc import Iterator
from io import SEEK_END, BufferedReader
from struct import iter_unpack, unpack_from
from typing import Any, Final, cast

import numpy as np

from ..items import TooMuchMemoryError

MAGIC: Final = b"ARROW1"
"""What a file begins and ends with, and a stream does not."""
_PREFIX: Final = 4
"""Bytes of a message's size."""
_DICTIONARY, _BATCH = 2, 3
"""Kinds of messages with a body."""


class Messages:
    """The bytes of messages, for the library: a head, then its body, without a copy."""

    closed = False

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        """Return the next bytes, no more than belong together."""
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        made, self._rest = self._rest[:size], self._rest[size:]
        return made

    def close(self) -> None:
        """Leave the stream open: it is somebody else's."""


def messages_of(stream: "BufferedReader[Any]", memory: int) -> Iterator[Any]:
    """Yield the heads and bodies of all messages, the schema first.

    Raises TooMuchMemoryError where a message takes more than ``memory``, with what it becomes; and OSError where there
    is none where one should be, or it is cut off.
    """
    try:
        begin = stream.read(_PREFIX)
        if begin == MAGIC[:_PREFIX]:
            for offset in (8, *_blocks(stream)):
                stream.seek(offset)
                yield from _message(stream.read(_PREFIX), stream, memory)
            return
        while message := _message(begin, stream, memory):
            yield from message
            begin = stream.read(_PREFIX)
    except (struct.error, ValueError, OverflowError) as error:
        raise OSError(f"a message contradicts itself: {error}") from error


def _blocks(stream: "BufferedReader[Any]") -> list[int]:
    """Return where dictionaries and record batches begin in a file."""
    end = stream.seek(-len(MAGIC) - _PREFIX, SEEK_END)
    size, magic = unpack_from("<i6s", stream.read(len(MAGIC) + _PREFIX))
    if magic != MAGIC or not 0 < size < end:
        raise OSError("it has not the end of an Arrow file")
    stream.seek(end - size)
    footer = _Table.first(_room(stream, size))
    return [block[0] for field in (2, 3) for block in footer.structs(field, "<qiiq")]


def _message(begin: bytes, stream: "BufferedReader[Any]", memory: int) -> list[Any]:
    """Return the message that begins so, head and body; nothing at the end."""
    begin += stream.read(_PREFIX) if begin == b"\xff\xff\xff\xff" else b""  # since version 0.15
    size = int.from_bytes(begin[-_PREFIX:], "little")
    if not size:
        return []
    if size > 1 << 26:  # no schema, and no list of buffers is that long
        raise OSError("no message begins here")
    head = _room(stream, size)
    message = _Table.first(head)
    length = message.number(3, "<q")
    if not 0 <= length < 1 << 42:  # no machine holds as many: damage says so
        raise OSError(f"a message of {length} bytes")
    TooMuchMemoryError.check("a record batch", length, memory)
    body = _room(stream, length)
    TooMuchMemoryError.check("a record batch", _bytes_of(message, body), memory)
    return [begin, head, body] if length else [begin, head]


def _room(stream: "BufferedReader[Any]", size: int) -> memoryview:
    """Return the next bytes; room that is not filled takes no memory."""
    room, at = memoryview(cast("Any", np.empty(size, np.uint8))), 0
    while at < size:
        count = stream.readinto(room[at:])
        if not count:
            raise OSError("it is cut off")
        at += count
    return room


def _bytes_of(message: "_Table", body: memoryview) -> int:
    kind, batch = message.number(1, "<B"), message.table(2)
    if kind not in (_DICTIONARY, _BATCH):
        return 0
    batch = batch.table(1) if kind == _DICTIONARY else batch
    if not batch.place(3):  # not compressed
        return len(body)
    sizes = [unpack_from("<q", body, begin)[0] for begin, length in batch.structs(2, "<qq") if length]
    return len(body) + sum(int(max(0, size)) for size in sizes)  # -1: it is as it is


class _Table:
    """A table of a flatbuffer: its fields are where its list of places says."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._places = at - unpack_from("<i", data, at)[0]

    @classmethod
    def first(cls, data: memoryview) -> "_Table":
        return cls(data, unpack_from("<I", data)[0])

    def place(self, field: int) -> int:
        """Return where a field is; 0 where there is none."""
        size = unpack_from("<H", self._data, self._places)[0]
        offset = unpack_from("<H", self._data, self._places + 4 + 2 * field)[0] if 4 + 2 * field < size else 0
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        place = self.place(field)
        return int(unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> "_Table":
        place = self.place(field)
        return _Table(self._data, place + unpack_from("<I", self._data, place)[0])

    def structs(self, field: int, kind: str) -> Iterator[tuple[int, ...]]:
        """Return what a vector holds."""
        place = self.place(field)
        if not place:
            return iter(())
        place += unpack_from("<I", self._data, place)[0]
        size = unpack_from("<I", self._data, place)[0] * {"<qq": 16, "<qiiq": 24}[kind]
        return iter_unpack(kind, self._data[place + 4 : place + 4 + size])
