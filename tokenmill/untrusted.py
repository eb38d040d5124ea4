"""Reading untrusted bytes within limits: JSON, compressed data, files.

Anyone who may write to a control topic, a store or a state file can put anything there. These functions return a value
or raise an error that they name, in bounded time and memory, and never block on an open.
"""

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import orjson

from tokenmill.errors import DamagedError

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""Longest JSON that is parsed: a genesis, the largest that we write, has 0.2 MB with 10,000 partitions."""
MAX_JSON_DEPTH: Final = 32
"""Deepest nesting: `stream.json` has 5 levels; the rest is for what a later version may add."""
MAX_TOKENIZER_BYTES: Final = 256 * 1024 * 1024
"""Largest `tokenizer.json`: four times as large as any that is published."""
_CHUNK_BYTES: Final = 1024 * 1024

FETCHERS: Final[list[Callable[[Path], int | None]]] = []
"""Of files that come when they are first read; each returns a descriptor, or None where it knows no such file."""


def parse_json(data: bytes | memoryview, *, most: int = MAX_JSON_BYTES) -> Any:
    """Return the value of JSON of at most ``most`` bytes; integers beyond 64 bits come as floats.

    Raises ValueError where it is longer, nested deeper than `MAX_JSON_DEPTH`, or no JSON in UTF-8.
    """
    if len(data) > most:
        raise ValueError(f"{len(data)} bytes of JSON, where at most {most} are read")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    _require_depth(value)
    return value


def _require_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [
            inner
            for outer in level
            if type(outer) in {list, dict}
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in {list, dict}
        ]
        if not level:
            return
    raise ValueError(f"JSON that is nested deeper than {MAX_JSON_DEPTH} levels")


def inflated(packed: bytes, *, most: int) -> bytes:
    """Return what zlib-compressed bytes hold; raises ValueError where that is more than ``most`` bytes, or damaged."""
    try:
        return b"".join(_pieces(packed, most))
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from error


def unzipped(packed: bytes, digest: str, *, most: int = MAX_TOKENIZER_BYTES) -> bytes | None:
    """Return what zlib-compressed bytes hold if it has this SHA-256 and at most ``most`` bytes, else None."""
    try:
        hashed = sha256()
        for piece in _pieces(packed, most):
            hashed.update(piece)
        return b"".join(_pieces(packed, most)) if hashed.hexdigest() == digest else None
    except (ValueError, zlib.error):
        return None


def _pieces(packed: bytes, most: int) -> Iterator[bytes]:
    """Decompress ``packed`` and yield bounded pieces; bytes after the end of its stream are ignored."""
    engine = zlib.decompressobj()
    size, view = 0, memoryview(packed)
    for at in range(0, len(view), _CHUNK_BYTES):
        rest: bytes | memoryview = view[at : at + _CHUNK_BYTES]
        while not engine.eof:
            piece = engine.decompress(rest, _CHUNK_BYTES)
            rest = engine.unconsumed_tail
            size += len(piece)
            if size > most:
                raise ValueError(f"more than {most} bytes")
            yield piece
            if not rest and len(piece) < _CHUNK_BYTES:
                break
    if not engine.eof:
        raise ValueError("it is cut off")


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file without blocking, return its descriptor; raises DamagedError where it is none, or OSError."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, 0o644)  # O_NONBLOCK changes nothing for a regular file
    except FileNotFoundError:
        found = (fetch(Path(path)) for fetch in FETCHERS if flags == os.O_RDONLY)
        if (fetched := next((one for one in found if one is not None), None)) is None:
            raise
        descriptor = fetched
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{path} is no file", "Something was put in its place: move that away, and repair the store")
    return descriptor


def regular_file(path: Path | str) -> BufferedReader:
    """Return a regular file, open for reading; raises as `open_regular`."""
    return os.fdopen(open_regular(path), "rb")


def read_regular(path: Path | str, *, most: int | None = None) -> bytes:
    """Return a regular file of ``most`` bytes; raises DamagedError where it is none, or longer, or OSError."""
    with regular_file(path) as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        raise DamagedError(f"{path} has more than {most} bytes", "Something was put in its place: move that away")
    return data


def read_json_file(path: Path | str, *, most: int = MAX_JSON_BYTES) -> Any:
    """Return the value of a file of JSON; raises as `parse_json` and `read_regular`."""
    return parse_json(read_regular(path, most=most), most=most)
