"""The texts of a part of a fetch, cut at white space: what all steps of a recipe share."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .byte_strings import Bytes, hash_bytes
from .compiled import compiled
from .words import CHUNK_CHARACTERS

FIRST: Final = 0
"""Nothing stands before the chunk in its text."""
SPACE: Final = 1
"""Exactly one space stands between the chunk and the one before."""
WHITE: Final = 2
"""Other white space stands before the chunk: for spaCy a word of its own, which is stripped later."""
CUT: Final = 3
"""Nothing: the chunk is the next piece of a long one (`CHUNK_CHARACTERS`)."""
_SPACE: Final = ord(" ")


class TextPart(NamedTuple):
    """Texts, one after the other, and their chunks: what stands between white space (`str.split`)."""

    data: Bytes
    """All texts in UTF-8, and eight bytes more."""
    begin: npt.NDArray[np.int64]
    """Shape ``[texts]``, as the next four."""
    end: npt.NDArray[np.int64]
    characters: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    """The text's chunks are ``[first, last)``."""
    last: npt.NDArray[np.int64]
    irregular: npt.NDArray[np.bool_]
    """Whether the text's words may be others than those of its chunks, one after the other."""
    chunk_begin: npt.NDArray[np.int64]
    """Shape ``[chunks]``, as the next two."""
    entry: npt.NDArray[np.int32]
    """Of each chunk in the `WordTable`."""
    gap: npt.NDArray[np.uint8]
    """What stands before each chunk: `FIRST`, `SPACE`, `WHITE` or `CUT`."""


@compiled
def white_space(data: Bytes, at: int) -> int:
    """Return the length of the white space character (`str.isspace`) that begins at ``at``; 0 if there is none."""
    lead = data[at]
    if lead <= 0x20:
        return 1 if 9 <= lead <= 13 or lead >= 28 else 0
    if lead < 0xC2 or lead > 0xE3:
        return 0
    if lead == 0xC2:
        return 2 if data[at + 1] in (0x85, 0xA0) else 0
    second, third = data[at + 1], data[at + 2]
    if lead == 0xE2:
        if second == 0x80:
            return 3 if third <= 0x8A or third in (0xA8, 0xA9, 0xAF) else 0
        return 3 if second == 0x81 and third == 0x9F else 0
    if lead == 0xE1:
        return 3 if second == 0x9A and third == 0x80 else 0
    return 3 if lead == 0xE3 and second == 0x80 and third == 0x80 else 0


@compiled
def line_break(data: Bytes, at: int, end: int) -> int:
    r"""Return the length of the line break (`str.splitlines`, ``\r\n`` is one) at ``at``; 0 if there is none."""
    lead = data[at]
    if lead < 0x20:
        if lead == 0x0D and at + 1 < end and data[at + 1] == 0x0A:
            return 2
        return 1 if 0x0A <= lead <= 0x0D or 0x1C <= lead <= 0x1E else 0
    if lead == 0xC2:
        return 2 if data[at + 1] == 0x85 else 0
    if lead == 0xE2 and data[at + 1] == 0x80:
        return 3 if data[at + 2] in (0xA8, 0xA9) else 0
    return 0


@compiled
def count_characters(data: Bytes, begin: int, end: int) -> int:
    """Return how many characters ``data[begin:end]`` has."""
    count = 0
    for at in range(begin, end):
        count += (data[at] & 0xC0) != 0x80
    return count


@compiled
def find_chunks(
    data: Bytes,
    begin: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    chunk_begin: npt.NDArray[np.int64],
    chunk_end: npt.NDArray[np.int64],
    gap: npt.NDArray[np.uint8],
) -> int:
    """Cut texts at white space; fill ``last`` (of each text) and the chunks, and return the longest one's bytes."""
    count = longest = 0
    for text in range(len(begin)):
        at, stop = begin[text], end[text]
        kind = FIRST
        while at < stop:
            start = at
            while at < stop:
                length = white_space(data, at)
                if length == 0:
                    break
                at += length
            if at > start:
                kind = SPACE if kind == CUT and at == start + 1 and data[start] == _SPACE else WHITE
            if at >= stop:
                break
            chunk_begin[count], gap[count] = at, kind
            start, characters = at, 0
            while at < stop:
                byte = data[at]
                if byte <= _SPACE or byte > 0x7F:
                    if white_space(data, at):
                        break
                    characters += (byte & 0xC0) != 0x80
                else:
                    characters += 1
                if characters > CHUNK_CHARACTERS:
                    break
                at += 1
            chunk_end[count] = at
            longest = max(longest, at - start)
            kind = CUT
            count += 1
        last[text] = count
    return longest


@compiled
def hash_texts(part: TextPart, rows: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> None:
    """Fill the hash of each row's text, the same one in every process."""
    for number in range(len(rows)):
        keys[number] = hash_bytes(part.data, part.begin[rows[number]], part.end[rows[number]], np.uint64(0))
