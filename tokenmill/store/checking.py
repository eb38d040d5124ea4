"""Holding the tokens of blocks against their CRCs, many at once.

The processor has an instruction for CRCs, so what they cost is to read memory, if it is asked for in long runs: a call
of a function costs as much as two kilobytes. What the CRC of a run must be follows from those of its blocks, for the
CRC of two pieces behind each other is that of the first, moved over the length of the second, and that of the second,
added without carry. Moving is linear in its bits, so it is looked up byte by byte, for many blocks at once.

Rows that were just copied are still in the core's cache, and their CRCs cost next to nothing (`crcs_of_runs` says what
these must be). Where a copy is not of whole blocks, these are looked at in place, each once in a process
(`unsound`).
"""

from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.store.maps import Identity, is_settled
from tokenmill.store.views import Tokens

_RUN_BYTES: Final = 128 << 10
"""A run has half of it at least, over which the cost of a call is nothing."""
_RUNS_AT_LEAST: Final = 8
"""From so many runs on, to compute what their CRCs must be costs less than to look at the wanted blocks alone."""
_SMALL_BYTES: Final = 1 << 20
"""Files up to which all blocks are looked at with the first: an era can have thousands of such files, and to come back
to each of them costs more."""
_DENSE: Final = 4
"""A run is worth reading whole if one in so many of its blocks is wanted; more of them will be."""
_REMEMBERED_BYTES: Final = 64 << 20
"""Marks of one byte a block that are kept for readers to come: of 131 GB of tokens in blocks of 2 kB."""

Numbers: TypeAlias = npt.NDArray[np.int64]
Marks: TypeAlias = npt.NDArray[np.bool_]
"""For each block of a file, whether it was found to be what was committed."""
Crcs: TypeAlias = npt.NDArray[np.uint32]

_remembered: dict[Identity, Marks] = {}


def marks_of(identity: Identity, blocks: int) -> Marks:
    """Return the marks of a file that has so many blocks: the same array for all who read it in this process.

    A file that was changed since has none. Also threads may share them: a mark is only ever set.
    """
    marks = _remembered.get(identity)
    if marks is None or len(marks) != blocks:
        marks = np.zeros(blocks, np.bool_)
        if is_settled(identity):
            if sum(map(len, list(_remembered.values()))) + blocks > _REMEMBERED_BYTES:
                _remembered.clear()  # to go through more than that again and again would find none of them, anyway
            _remembered[identity] = marks
    return marks


def unsound(tokens: Tokens, crcs: Crcs, marks: Marks, rows: Numbers, *, whole: bool) -> Numbers:
    """Return those of some blocks that are not what their CRCs say, and mark those that are.

    Args:
        tokens: of all blocks of a file, ``[blocks, block_tokens]``, contiguous.
        crcs: of the blocks.
        marks: of the blocks.
        rows: the blocks to look at: ascending, each once, none of them marked.
        whole: whether all blocks will be wanted soon, so that those beside the wanted ones are looked at, too.

    """
    size = tokens.strides[0]
    data = tokens.view(np.uint8).reshape(-1).data
    if whole and len(crcs) * size <= _SMALL_BYTES:
        bad = _one_by_one(data, size, crcs, marks, np.flatnonzero(~marks))
        return rows[np.isin(rows, bad)]
    rows = _without_sound_runs(data, size, crcs, marks, rows, whole=whole)
    return _one_by_one(data, size, crcs, marks, rows)


def _one_by_one(data: memoryview, size: int, crcs: Crcs, marks: Marks, rows: Numbers) -> Numbers:
    """Do the same with each row by itself."""
    wanted = crcs[rows].tolist()
    starts = (rows * size).tolist()
    sound = [crc32(data[start : start + size]) == crc for start, crc in zip(starts, wanted, strict=True)]
    if all(sound):
        marks[rows] = True
        return rows[:0]
    marks[rows[sound]] = True
    bad: Numbers = rows[np.logical_not(sound)]
    return bad


def _without_sound_runs(
    data: memoryview, size: int, crcs: Crcs, marks: Marks, rows: Numbers, *, whole: bool
) -> Numbers:
    """Look at whole runs where that is worth it, mark the blocks of those that are sound, and return the other rows."""
    if len(rows) < _RUNS_AT_LEAST:
        return rows
    each = 1 << max((_RUN_BYTES // size).bit_length() - 1, 0)
    runs = rows // each
    runs = runs[np.flatnonzero(np.diff(runs, prepend=-1))]
    runs = runs[(runs + 1) * each <= len(crcs)]
    if len(runs) < _RUNS_AT_LEAST or not (whole or len(rows) * _DENSE >= len(runs) * each):
        return rows
    span = each * size
    found = [crc32(data[start : start + span]) for start in (runs * span).tolist()]
    whole_runs = len(crcs) // each
    wanted = _joined(crcs[: whole_runs * each].reshape(-1, each)[runs], size)
    marks[: whole_runs * each].reshape(-1, each)[runs[wanted == np.array(found, np.uint32)]] = True
    return rows[~marks[rows]]


def crcs_of_runs(crcs: Crcs, size: int, each: int) -> list[int]:
    """Return what the CRCs of pieces must be that follow each other, ``each`` together, and then those left.

    Args:
        crcs: of the pieces, ``[pieces]``.
        size: bytes of a piece.
        each: pieces in a run.

    """
    runs, rest = divmod(len(crcs), each)
    width = 1 << (each - 1).bit_length()
    padded = np.zeros((runs + (rest > 0), width), np.uint32)  # in front: nothing that is moved stays nothing
    padded[:runs, width - each :] = crcs[: runs * each].reshape(runs, each)
    padded[runs:, width - rest :] = crcs[runs * each :]
    found: list[int] = _joined(padded, size).tolist()
    return found


def _joined(crcs: Crcs, size: int) -> Crcs:
    """Return the CRCs of pieces behind each other, ``[runs, pieces]``: a power of two of them, with ``size`` bytes."""
    while crcs.shape[1] > 1:
        first, second = np.ascontiguousarray(crcs[:, ::2]), crcs[:, 1::2]
        parts = first.view(np.uint8).reshape(*first.shape, 4)
        crcs = second.copy()
        for place, table in enumerate(_moving(size)):
            crcs ^= table[parts[..., place]]
        size *= 2
    return crcs[:, 0]


@lru_cache(maxsize=256)
def _moving(size: int) -> tuple[Crcs, ...]:
    """Return what becomes of each byte of a CRC when so many bytes follow, by the byte's place: the lowest first."""
    zeros = bytes(size)
    none = crc32(zeros)
    tables: list[Any] = []
    for place in range(4):
        table = np.zeros(256, np.uint32)
        for bit in range(8):
            moved = np.uint32(crc32(zeros, 1 << 8 * place + bit) ^ none)
            table[1 << bit : 2 << bit] = table[: 1 << bit] ^ moved
        tables.append(table)
    return tuple(tables)
