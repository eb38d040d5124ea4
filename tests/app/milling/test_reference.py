"""The reference, held against answers worked out by hand: all other answers are held against it."""

from collections import Counter
from dataclasses import replace
from struct import pack
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from tests.mills import PARTITION, RECIPE, SILENT, Source, flush, make_source, named, text, tiny_bpe, tombstone, write
from tests.strategies import record_lists, sources, sources_in
from tokenmill.app.milling.reference import Reference
from tokenmill.documents import Record, is_flush
from tokenmill.reading import resume_point
from tokenmill.wire.chain import Cursor
from tokenmill.wire.totals import Totals


def test_it_does_not_begin_in_the_middle_of_a_document() -> None:
    """A cursor there tells how many tokens are in blocks, not which."""
    source = make_source()
    (message, *_) = write(source, RECIPE, [text(5, "abcdefghij")])
    with pytest.raises(ValueError, match="in the middle of the document at offset 5"):
        Reference.resumed(RECIPE, source.stages, PARTITION, resume_point(message))


def _entry(*pieces: tuple[int, int, int, bytes]) -> bytes:
    rows = b"".join(pack("<IIqq", start, len(meta), offset, position) for start, offset, position, meta in pieces)
    metas = b"".join(meta for *_, meta in pieces)
    return pack("<II", len(pieces), len(metas)) + rows + metas


def test_a_short_log_worked_out_by_hand() -> None:
    """One document over two blocks, one that ends with its block, a flush, and what is no document."""
    long = named(10, "x", "abcdef", label="y", score=1.5)
    records = [
        text(9, " "),
        long,
        tombstone(12),
        text(13, "g\n"),
        Record(14, -1, b"k", b"\xff"),
        text(20, "h"),
        flush(21),
    ]
    recipe = replace(RECIPE, metadata_fields=("label", "score"), block_tokens=5)
    source = make_source(recipe)
    blocks = source.blocks(source.recipes[0], records)

    meta = b'{"fields":{"label":"y","score":1.5},"id":"x"}'
    assert [block.number for block in blocks] == [0, 1, 2]
    assert [block.tokens for block in blocks] == [b"abcde", b"f\0g\n\0", b"h\0\0\0\0"]
    entries = [
        _entry((0, 10, 0, meta)),
        _entry((0, 10, 5, meta), (2, 13, 0, b"")),
        _entry((0, 20, 0, b""), (2, 21, -1, b"")),
    ]
    assert [block.entry for block in blocks] == entries
    chain = xxh3_128_digest(b"tokenmill chain 1" + recipe.fingerprint + pack("<I", PARTITION))
    for block in blocks:
        chain = xxh3_128_digest(chain + block.tokens + block.entry)
        assert block.chain == chain
    assert [block.cursor for block in blocks] == [
        Cursor(10, 5, 1, 10, crc32(long.value or b""), 1010),
        Cursor(14, 0, 2, 13, crc32(b"g\n"), 1013),
        Cursor(22, 0, 3, 21, 0, 1021),
    ]
    size = len(long.value or b"")
    assert [block.totals for block in blocks] == [
        Totals(1, filtered=Counter(empty=1)),
        Totals(4, 2, 1, filtered=Counter(empty=1), tokens=10, value_bytes=size + 2),
        Totals(7, 3, 1, 1, 0, Counter(empty=1), Counter(invalid_utf8=1), 12, size + 3),
    ]


@given(sources, record_lists(), st.integers(0, 14))
def test_reading_on_later_changes_nothing(source: Source, records: list[Record], cut: int) -> None:
    recipe = source.recipes[0]
    reference = source.reference(recipe)
    first = list(reference.blocks(records[:cut]))
    assert 0 <= len(reference.open_block[0]) < recipe.block_bytes
    assert [*first, *reference.blocks(records[cut:])] == source.blocks(recipe, records)
    assert reference.totals.balanced
    assert reference.totals.records == len(records)


@given(sources_in(st.just({"packing": "concat"})), record_lists())
@example(
    make_source(replace(RECIPE, dtype="uint16", end_of_document=300), engine=tiny_bpe()),
    [text(0, SILENT), text(1, "aab b")],
)
def test_the_documents_stand_in_the_blocks_in_order(source: Source, records: list[Record]) -> None:
    """Without flushes: the tokenizer's ids of all kept documents with their ends, cut where a block is full."""
    recipe = source.recipes[0]
    records = [record for record in records if not is_flush(record)]
    reference = source.reference(recipe)
    blocks = list(reference.blocks(records))
    ids: list[int] = []
    silent = 0
    for record in records:
        outcome = source.stages.outcome(record)
        if outcome.document is not None and outcome.split == recipe.split:
            found = source.stages.engine.encode([outcome.document.text]).ids.tolist()
            ids += [*recipe.begin_of_document, *found, *recipe.after] if found else []
            silent += not found
    size = {"uint8": 1, "uint16": 2, "uint32": 4}[recipe.dtype]
    count = len(ids) // recipe.block_tokens
    written = b"".join(number.to_bytes(size, "little") for number in ids[: count * recipe.block_tokens])
    assert b"".join(block.tokens for block in blocks) == written
    assert len(blocks) == count
    assert reference.totals.filtered["no_tokens"] == silent


def test_a_record_below_the_start_does_not_count_and_a_skipped_one_is_a_dead_letter() -> None:
    source = make_source(RECIPE, start=5, skips=frozenset({6}))
    reference = source.reference(source.recipes[0])
    list(reference.blocks(text(offset, "ab") for offset in range(9)))
    assert reference.totals == Totals(4, 3, dead_lettered=Counter(skipped=1), tokens=9, value_bytes=6)
