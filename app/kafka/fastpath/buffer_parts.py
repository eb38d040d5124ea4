"""Bytes that lie in several places, on their way to a socket without being joined: each join copies a whole message.

What the socket does not take at once is copied by asyncio (before Python 3.12), and by TLS all is.
"""

import asyncio
import weakref
from collections.abc import Iterable


class Parts:
    """Bytes in several places. `len` says how many they are, and bytes can be put before them: ``b"head" + parts``."""

    __slots__ = ("_size", "each")

    def __init__(self, each: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take what nobody changes any more."""
        self.each = tuple(each)
        self._size = sum(map(len, self.each))

    def __len__(self) -> int:
        return self._size

    def __radd__(self, before: bytes) -> "Parts":
        return Parts((before, *self.each))


def take_parts(transport: asyncio.BaseTransport) -> None:
    """Let ``transport.write`` take `Parts` as well."""
    if not isinstance(transport, asyncio.WriteTransport):
        raise TypeError(transport)
    write, itself = type(transport).write, weakref.ref(transport)  # a cycle would keep TLS's buffers for long

    def write_each(data: bytes | bytearray | memoryview | Parts) -> None:
        transport = itself()
        if transport is not None:
            for part in data.each if isinstance(data, Parts) else (data,):
                write(transport, part)

    transport.write = write_each  # type: ignore[method-assign]
