"""The kernels of duplicates: signatures of texts, and the window in which they are looked for.

Of near signatures: hashes of shingles, their smallest values under permutations, hashes of bands. docs/format.md says
the arithmetic. Arrays of bytes have `PADDING` more at their end.

The window finds hashes in a table that says in which block of rows each one is. A slice's rows have the shape
``[blocks, columns, documents of a block]``, so that one column of a block is read in one go. A slot of its table has 16
bits of a hash, of which 0 is none, and the number of a block; the rows say the rest.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..curation.compiled import Bytes, compiled, eight_bytes

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


KEPT: Final = 0
EXACT: Final = 1
NEAR: Final = 2
"""What a document is."""
_TAG: Final = np.uint64(0xFFFF)
_HALF: Final = np.uint64(32)
GROUP: Final = 32
"""Documents whose slots are fetched at once: with 14 bands, 57 kB of cache lines, which a core's caches hold."""
FETCHED: Final = 32 * GROUP
"""Hashes of one column whose slots are fetched at once."""

Tags = npt.NDArray[np.uint16]
Blocks = npt.NDArray[np.uint8 | np.uint16]
Kinds = npt.NDArray[np.uint8]


@compiled
def _home(found: np.uint64, slots: int) -> int:
    return np.int64(((found >> _HALF) * np.uint64(slots)) >> _HALF)  # type: ignore[return-value]  # numba has no other


@compiled
def _tag(found: np.uint64) -> np.uint16:
    return np.uint16(max(found & _TAG, np.uint64(1)))


@compiled
def _enter(found: np.uint64, block: int, tags: Tags, blocks: Blocks) -> None:
    slot = _home(found, len(tags))
    while tags[slot] != 0:
        slot = slot + 1 if slot + 1 < len(tags) else 0
    tags[slot] = _tag(found)
    blocks[slot] = block


@compiled
def _fetch(hashes: Hashes, first: int, table: Tags | Blocks, entries: int) -> int:
    """Read the slots of the next documents, so that a processor waits for memory once for many of them.

    Returns what is never negative, and is looked at so that the compiler does not leave out what makes it.
    """
    read = 0
    for document in range(first, min(first + GROUP, len(hashes))):
        for column in range(entries):
            read += int(table[_home(hashes[document, column], len(table))])
    return read


@compiled
def _fetch_both(hashes: Hashes, first: int, tags: Tags, blocks: Blocks, entries: int) -> int:
    return _fetch(hashes, first, tags, entries) + _fetch(hashes, first, blocks, entries)


@compiled
def _row_of(found: np.uint64, column: int, tags: Tags, blocks: Blocks, rows: Hashes, count: int) -> int:
    """Return the first row whose hash in ``column`` is this one, of the first ``count``; -1: none."""
    slot, tag, size = _home(found, len(tags)), _tag(found), rows.shape[2]
    while tags[slot] != 0:
        if tags[slot] == tag:
            block = int(blocks[slot])
            for at in range(min(size, count - block * size)):
                if rows[block, column, at] == found:
                    return block * size + at
        slot = slot + 1 if slot + 1 < len(tags) else 0
    return -1


@compiled
def _oldest(hashes: Hashes, document: int, tags: Tags, blocks: Blocks, rows: Hashes, count: int, entries: int) -> int:
    """Return the oldest row that shares one of the document's entries; -1: none does.

    No two rows share one: the later of them was no document that is kept.
    """
    oldest, size = -1, rows.shape[2]
    for column in range(entries):
        found = hashes[document, column]
        if found != 0 and (oldest < 0 or rows[oldest // size, column, oldest % size] != found):
            row = _row_of(found, column, tags, blocks, rows, count)
            if row >= 0 and (oldest < 0 or row < oldest):
                oldest = row
    return oldest


@compiled
def _tell(hashes: Hashes, document: int, row: int, rows: Hashes, kinds: Kinds, places: Hashes) -> None:
    block, at, width = row // rows.shape[2], row % rows.shape[2], hashes.shape[1]
    same = rows[block, width - 1, at] == hashes[document, width - 1]
    kinds[document] = EXACT if same else NEAR
    places[document, 0] = rows[block, width, at]
    places[document, 1] = rows[block, width + 1, at]


@compiled
def _put(
    hashes: Hashes, document: int, tags: Tags, blocks: Blocks, rows: Hashes, row: int, entries: int, places: Hashes
) -> None:
    """Make a document the slice's next row."""
    width, size = hashes.shape[1], rows.shape[2]
    block, at = row // size, row % size
    for column in range(width):
        rows[block, column, at] = hashes[document, column]
    rows[block, width, at] = places[document, 0]
    rows[block, width + 1, at] = places[document, 1]
    for column in range(entries):
        if hashes[document, column] != 0:
            _enter(hashes[document, column], block, tags, blocks)


@compiled
def look_up(
    hashes: Hashes, tags: Tags, blocks: Blocks, rows: Hashes, count: int, entries: int, kinds: Kinds, places: Hashes
) -> None:
    """Look for all documents that are not duplicates yet among the rows of a slice that takes no more."""
    for document in range(len(hashes)):
        if document % GROUP == 0 and _fetch(hashes, document, tags, entries) < 0:
            break
        if kinds[document] == KEPT:
            row = _oldest(hashes, document, tags, blocks, rows, count, entries)
            if row >= 0:
                _tell(hashes, document, row, rows, kinds, places)


@compiled
def take(
    hashes: Hashes, tags: Tags, blocks: Blocks, rows: Hashes, count: int, entries: int, kinds: Kinds, places: Hashes
) -> int:
    """Look for documents in the open slice, and put those in that are kept; return the rows that it has then.

    ``places`` holds each document's own, and gets that of the one that it resembles.
    """
    for document in range(len(hashes)):
        if document % GROUP == 0 and _fetch_both(hashes, document, tags, blocks, entries) < 0:
            break
        if kinds[document] == KEPT:
            row = _oldest(hashes, document, tags, blocks, rows, count, entries)
            if row >= 0:
                _tell(hashes, document, row, rows, kinds, places)
                continue
            _put(hashes, document, tags, blocks, rows, count, entries, places)
            count += 1
    return count


@compiled
def put(hashes: Hashes, tags: Tags, blocks: Blocks, rows: Hashes, count: int, entries: int, places: Hashes) -> None:
    """Put documents into the open slice, which has ``count`` rows."""
    for document in range(len(hashes)):
        if document % GROUP == 0 and _fetch_both(hashes, document, tags, blocks, entries) < 0:
            break
        _put(hashes, document, tags, blocks, rows, count + document, entries, places)


@compiled
def enter_rows(tags: Tags, blocks: Blocks, rows: Hashes, count: int, entries: int) -> None:
    """Put the first ``count`` rows into an empty table."""
    size = rows.shape[2]
    for block in range(-(-count // size)):
        for column in range(entries):
            for first in range(0, min(size, count - block * size), FETCHED):
                found = rows[block, column, first : min(first + FETCHED, size, count - block * size)]
                read = 0  # as `_fetch`
                for at in range(len(found)):
                    home = _home(found[at], len(tags))
                    read += int(tags[home]) + int(blocks[home])
                for at in range(len(found) if read >= 0 else 0):
                    if found[at] != 0:
                        _enter(found[at], block, tags, blocks)
