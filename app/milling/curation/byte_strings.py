"""Strings of bytes within an array, for kernels: hashed and compared eight bytes at a time.

An array that is read so has `PADDING` bytes more than its strings.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compiled import compiled

PADDING: Final = 8

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Verdicts = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_LAST_FACTOR: Final = np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(32)
_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


@intrinsic  # type: ignore[untyped-decorator]
def eight_bytes(_context: Any, data: Any, at: Any) -> Any:  # noqa: ARG001 - numba looks at its type
    """Return ``data[at : at + 8]`` as a little-endian number, wherever it begins."""

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        number.align = 1
        return number

    return types.uint64(data, types.intp), load


@compiled
def hash_bytes(data: Bytes, begin: int, end: int, seed: np.uint64) -> np.uint64:
    """Return a hash of ``data[begin:end]``: multiply and fold, 64 bits at a time."""
    value = seed ^ (np.uint64(end - begin) * _LAST_FACTOR)
    at = begin
    while at + 8 <= end:
        value = (value ^ eight_bytes(data, at)) * _FACTOR
        value ^= value >> _SHIFT
        at += 8
    if at < end:
        rest = eight_bytes(data, at) & (_ALL >> np.uint64(8 * (8 - (end - at))))
        value = (value ^ rest) * _FACTOR
        value ^= value >> _SHIFT
    value *= _LAST_FACTOR
    return value ^ (value >> _SHIFT)


@compiled
def equal_bytes(one: Bytes, at: int, other: Bytes, place: int, size: int) -> bool:
    """Return whether ``one[at : at + size]`` and ``other[place : place + size]`` are the same bytes."""
    done = 0
    while done + 8 <= size:
        if eight_bytes(one, at + done) != eight_bytes(other, place + done):
            return False
        done += 8
    if done == size:
        return True
    difference = eight_bytes(one, at + done) ^ eight_bytes(other, place + done)
    return (difference & (_ALL >> np.uint64(8 * (8 - (size - done))))) == np.uint64(0)


@compiled
def character_at(data: Bytes, at: int) -> tuple[int, int]:
    """Return the code point of the character that begins at ``at`` in UTF-8, and its bytes."""
    value = np.int32(data[at])
    size = 1 if value < 0x80 else (2 if value < 0xE0 else (3 if value < 0xF0 else 4))
    if size > 1:
        value &= 0x1F if size == 2 else (0x0F if size == 3 else 0x07)
        for byte in range(at + 1, at + size):
            value = (value << 6) | np.int32(data[byte] & 0x3F)
    return int(value), size


@compiled
def polynomial(data: Bytes, begin: int, end: int, base: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a hash of ``data[begin:end]`` by which those of strings in a row can be joined, and the power for that.

    The hash of two strings in a row is the first one's times the second one's power plus the second one's, in 64 bits.
    """
    value, power = np.uint64(0), np.uint64(1)
    for at in range(begin, end):
        value = value * base + np.uint64(data[at]) + np.uint64(1)
        power *= base
    return value, power
