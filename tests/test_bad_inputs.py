"""Every row of the table of bad inputs through the mill: its answer, and neighbours that nothing happens to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bad_inputs import MAX_ID_BYTES, MAX_TEXT_BYTES, SILENT_ROW, TABLE, BadInput, ExpectedOutcome
from tests.mills import RECIPE, Source, assert_follow, make_source, tiny_bpe
from tests.strategies import json_bytes, json_values, nasty_bytes
from tokenmill.app.milling.decoding import REASONS
from tokenmill.app.milling.outcomes import NO_TOKENS, Outcome
from tokenmill.documents import Record
from tokenmill.wire.totals import Totals

NEIGHBOURS = ("the one before", "the one after")
LIMITS = replace(RECIPE, max_text_bytes=MAX_TEXT_BYTES, max_id_bytes=MAX_ID_BYTES, block_tokens=64)
SOURCES = {mode: make_source(replace(LIMITS, decode=mode)) for mode in ("json", "auto")}


def mill(source: Source, rows: Sequence[BadInput]) -> tuple[bytes, Totals, Sequence[Outcome]]:
    first, last = (Record(0, 0, None, json_bytes({"text": text})) for text in NEIGHBOURS)
    bad = [Record(n, row.timestamp, row.key, row.value, row.headers) for n, row in enumerate(rows, start=1)]
    records = [first, *bad, last._replace(offset=len(rows) + 1)]
    partition = source.mill(message_bytes=1 << 30)
    milled = partition.feed(records)
    (recipe,), (chain,) = source.recipes, partition.chains.values()
    assert_follow(milled.messages[recipe.split], source.blocks(recipe, records), recipe)
    carry = chain.carry(len(records))
    assert carry is not None
    assert carry.totals.balanced
    tokens = b"".join(bytes(message.tokens) for message in milled.messages[recipe.split])
    return tokens + carry.open_tokens, carry.totals, milled.dead_letters


def expected_tokens(wanted: Sequence[ExpectedOutcome]) -> bytes:
    tokens = NEIGHBOURS[0].encode() + b"\0"
    for one in wanted:
        if one.kind == "kept":
            tokens += one.what.encode() + b"\0"
        elif one.kind == "flush":
            tokens += bytes(-len(tokens) % LIMITS.block_tokens)
    return tokens + NEIGHBOURS[1].encode() + b"\0"


def counted(wanted: Sequence[ExpectedOutcome]) -> Totals:
    kinds = Counter(one.kind for one in wanted)
    filtered, dead = (Counter(one.what for one in wanted if one.kind == kind) for kind in ("filtered", "dead_lettered"))
    totals = Totals(len(wanted) + 2, kinds["kept"] + 2, tombstones=kinds["tombstone"], flushes=kinds["flush"])
    return replace(totals, filtered=filtered, dead_lettered=dead)


def check(mode: str, rows: Sequence[BadInput]) -> None:
    wanted = [row.json if mode == "json" else row.auto for row in rows]
    tokens, totals, dead = mill(SOURCES[mode], rows)
    assert tokens == expected_tokens(wanted)
    assert replace(totals, tokens=0, value_bytes=0) == counted(wanted)
    reasons = [(n, one.what) for n, one in enumerate(wanted, start=1) if one.kind == "dead_lettered"]
    assert [(outcome.record.offset, outcome.reason) for outcome in dead] == reasons
    for outcome in dead:
        row = rows[outcome.record.offset - 1]
        assert (outcome.record.key, outcome.record.value) == (row.key, row.value)
        assert outcome.exception
        assert len(outcome.detail) < 1000


@pytest.mark.parametrize("mode", ["json", "auto"])
@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_each_bad_input_has_its_answer_and_harms_no_neighbour(row: BadInput, mode: str) -> None:
    """Between two documents of one fetch: their tokens, the record's own if it is kept, the totals, the dead letter."""
    check(mode, [row])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["json", "auto"])
def test_the_whole_table_in_one_fetch_has_the_same_answers(mode: str) -> None:
    check(mode, TABLE)


def test_a_text_without_tokens_is_filtered_and_its_neighbours_are_not() -> None:
    recipe = replace(LIMITS, end_of_document=3, dtype="uint16")
    _, totals, dead = mill(make_source(recipe, engine=tiny_bpe()), [SILENT_ROW])
    assert (totals.kept, totals.filtered, len(dead)) == (2, {NO_TOKENS: 1}, 0)


@given(
    st.sampled_from(["json", "auto", "text"]),
    st.lists(st.binary() | nasty_bytes | json_values.map(json_bytes), max_size=12),
    st.booleans(),
)
@pytest.mark.slow
def test_no_bytes_stop_a_batch(mode: str, values: list[bytes], bpe: bool) -> None:  # noqa: FBT001 - drawn
    """Bytes and nested JSON of any kind: a function of each record alone, the reference's answer, nothing raised."""
    recipe = replace(LIMITS, decode=mode, end_of_document=3 if bpe else 0, dtype="uint16" if bpe else "uint8")
    source = make_source(recipe, engine=tiny_bpe() if bpe else None)
    rows = [BadInput("any", value, ExpectedOutcome("kept"), ExpectedOutcome("kept")) for value in values]
    _, totals, dead = mill(source, rows)
    assert totals.records == len(values) + 2
    assert totals.kept >= (2 if mode != "text" else 0)
    assert all(outcome.reason in REASONS for outcome in dead)
