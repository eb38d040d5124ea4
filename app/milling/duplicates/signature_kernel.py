"""The kernels of near signatures: hashes of shingles, their smallest values under permutations, hashes of bands.

docs/format.md says the arithmetic. Arrays of bytes have `PADDING` more at their end.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..curation.byte_strings import Bytes, eight_bytes
from ..curation.compiled import compiled

SHORTEST: Final = 9
LONGEST: Final = 128
"""Bytes that `hash_spans` can hash; other lengths have other rules in XXH3."""
PADDING: Final = 8
"""Bytes behind the last string, so that eight can be read anywhere in it."""
_SECRET: Final = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    ),
    "<u8",
)
"""The beginning of XXH3's secret (https://github.com/Cyan4973/xxHash)."""
_PRIME: Final = np.uint64(0x9E3779B185EBCA87)
_AVALANCHE: Final = np.uint64(0x165667919E3779F9)
_LOW: Final = np.uint64(0xFFFFFFFF)
_EVERY_SECOND: Final = np.uint64(0x00FF00FF00FF00FF)
_PAIRS: Final = np.uint64(0x0000FFFF0000FFFF)

Hashes = npt.NDArray[np.uint64]
Spans = npt.NDArray[np.int64]
Values = npt.NDArray[np.uint32]


@intrinsic  # type: ignore[untyped-decorator]
def _folded(_context: Any, one: Any, other: Any) -> Any:
    """Return the product of two numbers, its high 64 bits XOR its low ones."""

    def multiply(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.lshr(product, ir.Constant(wide, 64))
        return builder.trunc(builder.xor(product, high), ir.IntType(64))

    return types.uint64(one, other), multiply


@compiled
def _mixed(data: Bytes, at: int, secret: int) -> np.uint64:
    return _folded(eight_bytes(data, at) ^ _SECRET[secret], eight_bytes(data, at + 8) ^ _SECRET[secret + 1])


@compiled
def _finished(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(37))) * _AVALANCHE
    return value ^ (value >> np.uint64(32))


@compiled
def _swapped(value: np.uint64) -> np.uint64:
    """Return a number with its bytes in the other order."""
    value = ((value >> np.uint64(8)) & _EVERY_SECOND) | ((value & _EVERY_SECOND) << np.uint64(8))
    value = ((value >> np.uint64(16)) & _PAIRS) | ((value & _PAIRS) << np.uint64(16))
    return (value >> np.uint64(32)) | (value << np.uint64(32))


@compiled
def _xxh3(data: Bytes, begin: int, end: int) -> np.uint64:
    """Return XXH3-64, seed 0, of ``data[begin:end]``, which has 9 to 128 bytes."""
    size = end - begin
    if size <= 16:
        low = eight_bytes(data, begin) ^ _SECRET[3] ^ _SECRET[4]
        high = eight_bytes(data, end - 8) ^ _SECRET[5] ^ _SECRET[6]
        return _finished(np.uint64(size) + _swapped(low) + high + _folded(low, high))
    value = np.uint64(size) * _PRIME
    for part in range((size - 1) // 32 + 1):
        value += _mixed(data, begin + 16 * part, 4 * part) + _mixed(data, end - 16 * (part + 1), 4 * part + 2)
    return _finished(value)


@compiled
def hash_spans(data: Bytes, begins: Spans, ends: Spans, hashes: Hashes) -> None:
    """Hash each span of `SHORTEST` to `LONGEST` bytes; those of other lengths are left as they are."""
    for at in range(len(begins)):
        if SHORTEST <= ends[at] - begins[at] <= LONGEST:
            hashes[at] = _xxh3(data, begins[at], ends[at])


@compiled
def smallest_values(hashes: Hashes, bounds: Spans, factors: Values, terms: Values, smallest: Values) -> None:
    """Find the smallest value of each document's shingles under each permutation.

    The shingles of document n are ``hashes[bounds[n] : bounds[n + 1]]``. ``smallest``: shape ``[documents,
    permutations]``, full of the largest number.
    """
    for document in range(len(bounds) - 1):
        for at in range(bounds[document], bounds[document + 1]):
            value = np.uint32(hashes[at] & _LOW)
            value = np.uint32(value ^ (value >> np.uint32(16)))
            value = np.uint32(value * np.uint32(0x85EBCA6B))
            value = np.uint32(value ^ (value >> np.uint32(13)))
            value = np.uint32(value * np.uint32(0xC2B2AE35))
            value = np.uint32(value ^ (value >> np.uint32(16)))
            for number in range(len(factors)):
                permuted = np.uint32(factors[number] * value + terms[number])
                smallest[document, number] = min(smallest[document, number], permuted)


@compiled
def hash_bands(packed: Bytes, size: int, hashes: Hashes) -> None:
    """Hash consecutive strings of ``size`` bytes."""
    for at in range(len(hashes)):
        hashes[at] = _xxh3(packed, at * size, (at + 1) * size)
