"""One chain: whatever the feeds, the message sizes and the restarts, its messages are the reference's blocks."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import (
    PARTITION,
    RECIPE,
    Source,
    assert_follow,
    chain_outcomes,
    divide,
    flush,
    make_source,
    named,
    text,
    tombstone,
    write,
)
from tests.strategies import feed_sizes, message_bytes, record_lists, sources
from tokenmill.app.milling.chain_mill import ChainMill, open_packing
from tokenmill.app.milling.outcomes import NO_TOKENS
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.errors import SettingsError, SourceError
from tokenmill.reading.continuing import genesis_point, resume_point
from tokenmill.records import Record
from tokenmill.wire.chain import Cursor, genesis_hash, record_crc
from tokenmill.wire.message import HEADER_OVERHEAD, Message, encode_header
from tokenmill.wire.pieces import PADDING, decode_entry
from tokenmill.wire.totals import Totals

flags = st.lists(st.booleans(), min_size=1, max_size=4)


@given(sources, record_lists(), feed_sizes, message_bytes, flags)
@pytest.mark.slow
def test_messages_are_the_reference_blocks_however_they_are_cut(
    source: Source, records: list[Record], sizes: list[int], size: int, carries: list[bool]
) -> None:
    """Tokens, entries and hashes of all blocks, and cursor and totals at each message's end; carries change nothing."""
    for recipe in source.recipes:
        messages = write(source, recipe, records, sizes, message_bytes=size, carries=carries)
        assert_follow(messages, source.blocks(recipe, records), recipe)


@given(
    source=sources,
    records=record_lists(),
    sizes=feed_sizes,
    again=feed_sizes,
    carries=flags,
    old=st.integers(0, 10),
    data=st.data(),
)
def test_a_chain_continues_from_any_message_as_if_nothing_had_happened(
    *,
    source: Source,
    records: list[Record],
    sizes: list[int],
    again: list[int],
    carries: list[bool],
    old: int,
    data: st.DataObject,
) -> None:
    """From a block in the middle of a document too, and from a carry's open block; passed records are skipped."""
    recipe = source.recipes[-1]
    blocks = source.blocks(recipe, records)
    before = write(source, recipe, records, sizes, carries=carries)
    if not before:
        return
    message = data.draw(st.sampled_from(before))
    rest = [record for record in records if record.offset >= message.cursor.next_offset - old]
    after = write(source, recipe, rest, again, after=message)
    assert_follow(after, blocks, recipe, first=message.end)


@given(sources, record_lists(), feed_sizes, st.lists(st.integers(0, 6), min_size=1, max_size=4))
@pytest.mark.slow
def test_a_chain_survives_restart_after_restart(
    source: Source, records: list[Record], sizes: list[int], lives: list[int]
) -> None:
    """A worker that publishes a few messages and dies, then the next one, until nothing is left: no block is other."""
    recipe = source.recipes[0]
    published: list[Message] = []
    for life in [*lives, None]:
        last = published[-1] if published else None
        written = write(source, recipe, records, sizes, carries=(False, True), after=last)
        published += written[:life]
    assert_follow(published, source.blocks(recipe, records), recipe)


@given(sources, record_lists(), feed_sizes, feed_sizes)
@pytest.mark.slow
def test_a_carry_depends_on_the_position_alone(
    source: Source, records: list[Record], sizes: list[int], others: list[int]
) -> None:
    """Two mills fed differently, one of them restarted from its own carry, write the same carry at the same place."""
    recipe = source.recipes[0]
    position = records[-1].offset + 3 if records else 7
    carries = []
    for division in (sizes, others):
        mill = source.mill()
        chain = mill.chains[recipe.split]
        for feed in divide(records, division):
            mill.feed(feed)
            carry = chain.carry(position)
            assert carry is not None
        carries.append(chain.carry(position))
    first = carries[0]
    assert first is not None
    resumed = source.chain(recipe, resume_point(first)).carry(position)
    assert carries == [first, resumed]
    assert encode_header(first) == encode_header(resumed or first)


@given(sources, record_lists(), st.integers(0, 5))
@pytest.mark.slow
def test_a_carry_holds_the_open_block_and_a_position_past_gaps(source: Source, records: list[Record], gap: int) -> None:
    """Its open tokens are those that the reference has left, and its totals all records so far."""
    recipe = source.recipes[0]
    reference = source.reference(recipe)
    blocks = list(reference.blocks(records))
    position = (records[-1].offset + 1 if records else 0) + gap
    mill = source.mill()
    mill.feed(records)
    chain = mill.chains[recipe.split]
    carry = chain.carry(position)
    assert carry is not None
    last = records[-1] if records else None
    remembered = (last.offset, record_crc(last.key, last.value), last.timestamp) if last else (-1, 0, 0)
    assert carry.cursor == Cursor(position, 0, len(blocks), *remembered)
    assert carry.is_carry
    assert carry.open_tokens == reference.open_block[0]
    assert chain.open_tokens == len(carry.open_tokens) // np.dtype(recipe.dtype).itemsize
    assert bool(carry.open_tokens) == bool(carry.open_entry)
    assert carry.totals == chain.totals == reference.totals
    assert carry.before == carry.after == (blocks[-1].chain if blocks else genesis_hash(recipe.fingerprint, PARTITION))


def test_no_carry_in_the_middle_of_a_document() -> None:
    """A chain that resumed there has no open block to tell; after the document it has."""
    source = make_source()
    records = [text(5, "abcdefghij")]
    first, second = write(source, RECIPE, records)
    assert (first.cursor.next_offset, first.cursor.taken) == (5, 4)
    chain = source.chain(RECIPE, resume_point(first))
    assert chain.carry(6) is None
    mill = source.mill([resume_point(first)])
    assert mill.feed(records).messages["train"] == [second]
    assert mill.chains["train"].carry(6) is not None


def test_the_cursor_in_a_document_remembers_that_document() -> None:
    """After a block that cuts a document it is that document's record, not the one before; the totals exclude it."""
    source = make_source()
    records = [tombstone(1), text(4, "abcdefgh"), tombstone(9)]
    middle, end = write(source, RECIPE, records, ())
    remembered = (4, record_crc(None, b"abcdefgh"), 1004)
    assert middle.cursor == Cursor(4, 4, 1, *remembered)
    assert end.cursor == Cursor(4, 8, 2, *remembered)
    assert middle.totals == end.totals == Totals(records=1, tombstones=1)


def test_the_cursor_after_a_document_that_fills_its_block_stands_behind_it() -> None:
    """Not in the middle: nothing of the document is left; what follows it is not passed yet."""
    source = make_source()
    (message,) = write(source, RECIPE, [text(4, "abc"), tombstone(9)], ())
    assert message.cursor == Cursor(5, 0, 1, 4, record_crc(None, b"abc"), 1004)
    assert message.totals == Totals(records=1, kept=1, tokens=4, value_bytes=3)


def test_a_document_whose_separator_alone_is_left_continues() -> None:
    """All its text is in blocks, its end-of-document id is not."""
    source = make_source()
    records = [text(0, "abcd"), text(1, "xyz")]
    messages = write(source, RECIPE, records)
    assert messages[0].cursor.taken == len("abcd")
    assert bytes(messages[1].tokens) == b"\0xyz"
    assert write(source, RECIPE, records, after=messages[0]) == messages[1:]


def test_a_flush_fills_the_open_block_and_an_empty_one_stays_empty() -> None:
    """Two flushes in a row are one block, and both are counted."""
    source = make_source()
    records = [flush(0), text(1, "a"), flush(2), flush(3), text(4, "b"), flush(5)]
    messages = write(source, RECIPE, records, ())
    assert [bytes(message.tokens) for message in messages] == [b"a\0\0\0", b"b\0\0\0"]
    assert [message.totals.flushes for message in messages] == [2, 4]
    assert_follow(messages, source.blocks(RECIPE, records), RECIPE)


def test_padding_has_an_id_of_its_own_where_no_token_ends_a_document() -> None:
    """Documents follow each other directly, and pieces say where each begins; positions count the first token, too."""
    recipe = replace(RECIPE, begin_of_document=(7,), end_of_document=(), padding=9)
    source = make_source(recipe)
    records = [text(0, "a"), text(1, "bcd"), flush(2)]
    messages = write(source, recipe, records)
    assert [bytes(message.tokens) for message in messages] == [b"\7a\7b", b"cd\x09\x09"]
    entries = [decode_entry(message.entries[0]) for message in messages]
    assert [[(piece.start, piece.offset, piece.position) for piece in pieces] for pieces in entries] == [
        [(0, 0, 0), (2, 1, 0)],
        [(0, 1, 2), (2, 2, PADDING)],
    ]
    assert messages[-1].totals.tokens == 6
    assert write(source, recipe, records, after=messages[0]) == messages[1:]


@given(st.integers(0, 12), st.integers(1, 6))
def test_messages_are_cut_at_about_message_bytes(count: int, fit: int) -> None:
    """As many blocks as fit; one block at least, however small the setting."""
    source = make_source()
    records = [named(0, "x", "a" * (RECIPE.block_tokens * (count + 1) - 1))]
    entry = len(source.blocks(RECIPE, records)[0].entry)
    size = HEADER_OVERHEAD + fit * (RECIPE.block_bytes + entry)
    for message_bytes_, expected in ((size, fit), (size + RECIPE.block_bytes, fit), (1, 1)):
        messages = write(source, RECIPE, records, message_bytes=message_bytes_)
        counts = [message.count for message in messages]
        assert counts[:-1] == [expected] * (len(counts) - 1)
        assert 1 <= counts[-1] <= expected
        assert sum(counts) == count + 1


@given(sources, record_lists(), st.frozensets(st.integers(0, 20)))
def test_messages_end_where_they_are_told_to(source: Source, records: list[Record], ends: frozenset[int]) -> None:
    """And are right there, cursor and totals included."""
    recipe = source.recipes[0]
    point = genesis_point(0, genesis_hash(recipe.fingerprint, PARTITION))
    chain = ChainMill(recipe, point, message_bytes=1 << 40, ends=ends)
    messages = PartitionMill(source.stages, [chain], source.skips).feed(records).messages[recipe.split]
    blocks = source.blocks(recipe, records)
    assert_follow(messages, blocks, recipe)
    assert ends & set(range(1, len(blocks) + 1)) <= {message.end for message in messages}


def test_a_text_without_tokens_is_filtered_under_its_own_reason() -> None:
    """It is no document for the chain: not even an end-of-document id."""
    source = make_source()
    mill = source.chain(RECIPE)
    assert mill.feed(chain_outcomes(source, RECIPE, [text(0, "a")], [0])) == []
    assert mill.totals == Totals(records=1, filtered=Counter({NO_TOKENS: 1}))
    assert mill.open_tokens == 0


@pytest.mark.parametrize(
    ("record", "tokens"), [(tombstone(5), []), (text(5, "abc"), [3]), (text(6, "abcdefghij"), [10])]
)
def test_a_document_that_is_partly_in_blocks_must_be_there_when_the_chain_continues(
    record: Record, tokens: list[int]
) -> None:
    """Gone, shorter, or an outcome of another kind: blocks of two histories must not be joined."""
    source = make_source()
    point = resume_point(write(source, RECIPE, [text(5, "abcdefghij")])[0])
    chain = source.chain(RECIPE, point)
    with pytest.raises(SourceError, match="offset 5"):
        chain.feed(chain_outcomes(source, RECIPE, [record], tokens))


def test_a_chain_begins_at_its_genesis_offset() -> None:
    """What lies below is not read and not counted."""
    chain = genesis_hash(RECIPE.fingerprint, 0)
    mill = ChainMill(RECIPE, genesis_point(3, chain), message_bytes=1)
    source = make_source()
    messages = mill.feed(chain_outcomes(source, RECIPE, [text(offset, "abc") for offset in range(5)], [3] * 5))
    assert [message.cursor.next_offset for message in messages] == [4, 5]
    assert messages[-1].totals.records == len(messages)


def test_milling_leaves_the_point_that_it_began_with_alone() -> None:
    """The totals of a message that was read are not changed by going on from it."""
    source = make_source()
    records = [text(offset, "abc") for offset in range(3)]
    first, *_ = write(source, RECIPE, records)
    kept = replace(first.totals)
    write(source, RECIPE, records, after=first)
    assert first.totals == kept


def test_a_chain_begins_without_an_open_block() -> None:
    """Nothing waits before the first document."""
    opened = open_packing(RECIPE).open_block
    assert opened == (b"", b"")


def test_a_packing_of_another_version_is_refused() -> None:
    """Rather than packed some other way."""
    with pytest.raises(SettingsError, match="use the version that made the stream"):
        open_packing(replace(RECIPE, packing="best-fit"))
