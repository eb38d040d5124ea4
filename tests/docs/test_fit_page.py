"""docs/format.md on the packing ``fit``: who knows the page alone makes the same blocks, and finds the open ones."""

import random
import struct
import zlib
from dataclasses import replace
from typing import Any

from tests.mills import RECIPE, flush, make_source, text, write
from tokenmill.documents import Record
from tokenmill.wire.message import encode_header

SIZE, MOST_OPEN, AGE, PADDING = 16, 3, 12, 0
Piece = tuple[int, int, int]
"""Start, offset, position."""


def crc(record: Record) -> int:
    return zlib.crc32((record.key or b"") + (record.value or b""))


def pack(records: list[Record]) -> tuple[list[tuple[list[int], list[Piece]]], list[dict[str, Any]]]:  # noqa: C901
    """Return the blocks that leave, and those that are open at the end; a record without a value is a flush."""
    left: list[tuple[list[int], list[Piece]]] = []
    opened: list[dict[str, Any]] = []

    def close(block: dict[str, Any], offset: int) -> None:
        opened.remove(block)
        pieces = [*block["pieces"], (len(block["tokens"]), offset, -1)]
        left.append((block["tokens"] + [PADDING] * (SIZE - len(block["tokens"])), pieces))

    for record in records:
        while opened and opened[0]["pieces"][0][1] + AGE < record.offset:
            close(opened[0], opened[0]["pieces"][0][1] + AGE + 1)
        if record.value is None:
            while opened:
                close(opened[0], record.offset)
            continue
        tokens, at = [*record.value, 0], 0
        while len(tokens) - at >= SIZE:
            left.append((tokens[at : at + SIZE], [(0, record.offset, at)]))
            at += SIZE
        rest = tokens[at:]
        if not rest:
            continue
        fitting = [block for block in opened if SIZE - len(block["tokens"]) >= len(rest)]
        if not fitting:
            if len(opened) == MOST_OPEN:
                close(max(opened, key=lambda block: len(block["tokens"])), record.offset)
            fitting = [{"tokens": [], "pieces": [], "references": []}]
            opened += fitting
        block = max(fitting, key=lambda block: len(block["tokens"]))
        block["pieces"].append((len(block["tokens"]), record.offset, at))
        block["references"].append((record.offset, at, len(rest), crc(record)))
        block["tokens"] += rest
        if len(block["tokens"]) == SIZE:
            opened.remove(block)
            left.append((block["tokens"], block["pieces"]))
    return left, opened


def read_references(header: bytes) -> list[list[tuple[int, int, int, int]]]:
    magic, *_ = struct.unpack_from("<4s", header)
    totals, entries, opened = struct.unpack_from("<III", header, 108)
    assert struct.unpack("<I", header[-4:])[0] == zlib.crc32(header[:-4])
    if magic == b"TMm1":
        assert len(header) == 120 + totals + entries + opened + 4
        return []
    assert magic == b"TMm2"
    (size,) = struct.unpack_from("<I", header, 120)
    at = 124 + totals + entries + opened
    assert len(header) == at + size + 4
    (count,) = struct.unpack_from("<I", header, at)
    pieces = struct.unpack_from(f"<{count}I", header, at + 4)
    rows = list(struct.iter_unpack("<qIII", header[at + 4 + 4 * count : at + size]))
    assert len(rows) == sum(pieces)
    return [[rows.pop(0) for _ in range(number)] for number in pieces]


def read_entry(entry: bytes) -> list[Piece]:
    (count,) = struct.unpack_from("<I", entry)
    return [(s, offset, position) for s, _, offset, position in struct.iter_unpack("<IIqq", entry[8 : 8 + 24 * count])]


def test_the_page_makes_the_same_blocks() -> None:
    """Documents of up to three blocks, flushes, gaps; and after each message the open blocks that it names."""
    parameters = {"open_blocks": MOST_OPEN, "max_age_offsets": AGE}
    source = make_source(replace(RECIPE, block_tokens=SIZE, packing="fit", packing_parameters=parameters))
    (recipe,) = source.recipes
    rng, records, offset = random.Random(5), list[Record](), 0
    for _ in range(300):
        offset += rng.choice([1, 1, 1, 2, 20])
        size = rng.choice([1, 2, 5, 9, 15, 16, 40])
        records.append(flush(offset) if rng.random() < 0.03 else text(offset, rng.choice("abcde") * size))
    done = 0
    messages = write(source, recipe, records, (1,), carries=(True,))
    expected, _ = pack(records)
    blocks = [
        (list(bytes(message.tokens)[n * SIZE : (n + 1) * SIZE]), read_entry(entry))
        for message in messages
        for n, entry in enumerate(message.entries)
    ]
    assert blocks == expected
    for message in messages:
        if message.is_carry and rng.random() < 0.2:
            _, opened = pack([record for record in records if record.offset < message.cursor.next_offset])
            assert read_references(encode_header(message)) == [block["references"] for block in opened]
            done += bool(opened)
    assert done
