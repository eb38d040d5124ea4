"""The kernels of the window: hashes are found in a table that says in which block of rows each one is.

A slice's rows have the shape ``[blocks, columns, documents of a block]``, so that one column of a block is read in one
go. A slot of its table has 16 bits of a hash, of which 0 is none, and the number of a block; the rows say the rest.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ..curation.compiled import compiled

KEPT: Final = 0
EXACT: Final = 1
NEAR: Final = 2
"""What a document is."""
_LOW: Final = np.uint64(0xFFFFFFFF)
_TAG: Final = np.uint64(0xFFFF)
_HALF: Final = np.uint64(32)
GROUP: Final = 32
"""Documents whose slots are fetched at once: with 14 bands, 57 kB of cache lines, which a core's caches hold."""
FETCHED: Final = 32 * GROUP
"""Hashes of one column whose slots are fetched at once."""

Hashes = npt.NDArray[np.uint64]
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
