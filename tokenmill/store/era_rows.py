"""The index of a store's eras: one row of 48 bytes for each line of ``eras.jsonl``, which makes that line count.

Little-endian::

    u8  stop     length of eras.jsonl with this era
    u8  blocks   blocks of all eras up to and with this one
    u8  offset   of the era's record on the control topic
    u8  closed   when it was written, in milliseconds since 1970
    u4  flags    1: it is the end marker
    u4  earlier  how many rows of the same commit are before this one
    u4  line     CRC-32 of the era's line, its newline included
    u4  crc      CRC-32 of the stream's seed (`row_seed`), of the row's number as u8, and of its own first 44 bytes

Lines are on disk before their rows are written, and the rows of one commit before the next commit begins. Everything
here is pure: `scan` sees bytes, never a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era

ROW_BYTES: Final = 48
COMMIT_ROWS: Final = 64
"""Most eras in one commit. A reader that opens the index looks at this many rows and one more, whatever the number of
eras: all rows before them belong to finished commits."""
END: Final = 1
_ROW: Final = Struct("<QQQQIIII")
_CRC: Final = Struct("<I")
_NUMBER: Final = Struct("<Q")
_CRC_AT: Final = ROW_BYTES - _CRC.size


class EraRow(NamedTuple):
    """One row, with the fields in the table above; ``EraRow()`` is the row before the first."""

    stop: int = 0
    blocks: int = 0
    offset: int = 0
    closed: int = 0
    flags: int = 0
    earlier: int = 0
    line: int = 0
    crc: int = 0

    @classmethod
    def decode(cls, row: bytes) -> Self:
        """Return the row that these 48 bytes spell."""
        return cls(*_ROW.unpack(row))


@dataclass(frozen=True, slots=True)
class EraScan:
    """The content of an index."""

    count: int
    """Rows of the longest valid prefix."""
    damage: str | None
    """Why what follows it cannot be a commit whose writing was cut off; None if it can."""


def row_seed(fingerprint: bytes) -> int:
    """Return the start value of each row's CRC in a stream with this fingerprint."""
    return crc32(b"tokenmill eras 1" + fingerprint)


def encode_commit(eras: Sequence[tuple[Era, int]], seed: int, before: EraRow) -> tuple[bytes, bytes]:
    """Return the lines and the rows of one commit: eras that follow the one of row ``before``, each with its offset."""
    lines, rows = [], []
    for earlier, (era, offset) in enumerate(eras):
        line = era.pack() + b"\n"
        row = encode_row((era, offset), line, seed, before, earlier)
        before = EraRow.decode(row)
        rows.append(row)
        lines.append(line)
    return b"".join(lines), b"".join(rows)


def encode_row(era_at: tuple[Era, int], line: bytes, seed: int, before: EraRow, earlier: int) -> bytes:
    """Return the row of an era, given with its offset, whose ``line`` follows that of row ``before``."""
    era, offset = era_at
    stop, blocks = before.stop + len(line), before.blocks + era.blocks
    row = _ROW.pack(stop, blocks, offset, era.closed, END * era.end, earlier, crc32(line), 0)[:_CRC_AT]
    return row + _CRC.pack(_crc(seed, era.number, row))


def scan(rows: bytes, seed: int, number: int) -> EraScan:
    """Look at the rows from ``number`` on; each is valid or not by itself.

    An invalid row counts as never written only if no later commit follows: the rows of a commit are on disk before the
    next one begins, in any order until then.
    """
    cut = [rows[at : at + ROW_BYTES] for at in range(0, len(rows) - ROW_BYTES + 1, ROW_BYTES)]
    valid = [
        _crc(seed, number + index, row[:_CRC_AT]) == int.from_bytes(row[_CRC_AT:], "little")
        for index, row in enumerate(cut)
    ]
    count = valid.index(False) if False in valid else len(cut)
    for index in range(count + 1, len(cut)):
        if valid[index] and index - EraRow.decode(cut[index]).earlier > count:
            return EraScan(count, f"the row of era {number + count} is damaged (that of era {number + index} is whole)")
    return EraScan(count, None)


def _crc(seed: int, number: int, row: bytes) -> int:
    return crc32(row, crc32(_NUMBER.pack(number), seed))
