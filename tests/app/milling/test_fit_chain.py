"""A chain with the packing ``fit``: messages, carries and resumes from any of them, as the reference has it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import PARTITION, RECIPE, Source, assert_follow, flush, make_source, text, write
from tests.strategies import feed_sizes, message_bytes, record_lists, sources
from tokenmill.app.milling.packing.reopening import NEAR_OFFSETS, Reopening
from tokenmill.app.milling.reference import Reference
from tokenmill.errors import SourceError
from tokenmill.reading.continuing import ResumePoint, resume_point
from tokenmill.recipe import Recipe
from tokenmill.records import Record
from tokenmill.wire.message import Message, decode_message, encode_header
from tokenmill.wire.pieces import split_references


def fitting(source: Source, most_open: int, age: int) -> Source:
    """Return the same source with this packing."""
    parameters = {"open_blocks": most_open, "max_age_offsets": age}
    recipes = tuple(replace(r, packing="fit", packing_parameters=parameters) for r in source.recipes)
    return replace(source, recipes=recipes)


def reopened(source: Source, recipe: Recipe, message: Message, records: list[Record]) -> ResumePoint:
    """Return the point behind a message, its open blocks made of the records again."""
    reopening = Reopening(recipe, source.stages, resume_point(message), source.skips)
    for start, end in reopening.ranges:
        reopening.take([record for record in records if start <= record.offset < end])
    return reopening.point()


fit_sources = st.builds(fitting, sources, st.integers(1, 4), st.sampled_from([1, 2, 5, 100]))
DOCUMENTS = [text(n, "abcde"[: 1 + n % 5]) for n in range(12)]


@pytest.mark.slow
@given(fit_sources, record_lists(max_size=24), feed_sizes, message_bytes, st.data())
def test_it_goes_on_after_any_message(
    source: Source, records: list[Record], sizes: list[int], size: int, data: st.DataObject
) -> None:
    """In the middle of a document or a flush as well, from any carry, by value or by reference; the same ever after."""
    for recipe in source.recipes:
        blocks = source.blocks(recipe, records)
        messages = write(source, recipe, records, sizes, message_bytes=size, carries=(True, False))
        assert_follow(messages, blocks, recipe)
        if not messages:
            continue
        sent = data.draw(st.sampled_from(messages))
        message = decode_message(encode_header(sent), bytes(sent.tokens))
        point = reopened(source, recipe, message, records)
        chain = source.chain(recipe, point)
        carry = chain.carry(message.cursor.next_offset, by_value=True)
        assert (carry is None) == message.cursor.within
        if carry is not None:
            opened = carry.open_tokens, carry.open_entry, carry.references
            assert opened == (point.open_tokens, point.open_entry, message.references)
            assert resume_point(decode_message(encode_header(carry), b"")).is_complete
            again = Reference.resumed(recipe, source.stages, PARTITION, point, source.skips)
            assert list(again.blocks(records)) == blocks[message.end :]
        mill = source.mill([point if recipe is one else None for one in source.recipes])
        assert_follow(mill.feed(records).messages[recipe.split], blocks, recipe, message.end)


def test_a_message_can_end_before_its_document_is_placed() -> None:
    """The fullest block is closed for it: the cursor remembers that document, and stands before it."""
    source = fitting(make_source(), 1, 100)
    (recipe,) = source.recipes
    message, *_ = write(source, recipe, [text(0, "a"), text(1, "bc"), text(2, "defg")])
    cursor = message.cursor
    assert (cursor.next_offset, cursor.taken, cursor.last_offset, cursor.within) == (1, 0, 1, True)
    assert message.totals.kept == 1
    assert source.chain(recipe, resume_point(message)).carry(5) is None


def test_a_flush_can_be_half_done() -> None:
    """It closes the oldest block first; the flush counts once all are closed."""
    source = fitting(make_source(), 4, 100)
    (recipe,) = source.recipes
    records = [text(0, "ab"), text(1, "cd"), flush(2)]
    first, second = write(source, recipe, records)
    assert [bytes(first.tokens), bytes(second.tokens)] == [b"ab\0\0", b"cd\0\0"]
    assert [m.cursor.next_offset for m in (first, second)] == [2, 3]
    assert [m.totals.flushes for m in (first, second)] == [0, 1]
    mill = source.mill([reopened(source, recipe, first, records)])
    assert mill.feed(records).messages["train"] == [second]


def test_totals_count_padding_documents_that_are_cut_and_blocks_with_several() -> None:
    """With the blocks that leave."""
    source = fitting(make_source(), 1, 100)
    (recipe,) = source.recipes
    *_, last = write(source, recipe, [text(0, "abcde"), text(1, "f"), text(2, "ghi"), text(3, "j"), flush(4)])
    assert last.totals.packing == {"cut": 1, "joined": 1, "padding": 2}
    assert last.totals.balanced


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (DOCUMENTS[3]._replace(value=b"zzzz"), "is another record now"),
        (DOCUMENTS[3]._replace(value=None), "is another record now"),
        (None, "is gone, or is no document of the split any more"),
    ],
)
def test_a_record_of_an_open_block_that_is_another_one_now_is_refused(now: Record | None, said: str) -> None:
    """One of the same length as well: two histories would be joined."""
    source = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 100)
    (recipe,) = source.recipes
    carry = write(source, recipe, DOCUMENTS, (100,), carries=(True,))[-1]
    assert split_references(carry.references).rows["offset"].tolist() == list(range(12))
    log = [*DOCUMENTS[:3], *([now] if now else []), *DOCUMENTS[4:]]
    with pytest.raises(SourceError, match=f"offset 3 of raw-text, of which an open block of split train .* {said}"):
        reopened(source, recipe, carry, log)
    assert reopened(source, recipe, carry, DOCUMENTS).is_complete


def test_a_record_on_the_skip_list_is_refused_where_an_open_block_has_it() -> None:
    """It is passed, and the list does not take it; whoever wrote it there all the same is told."""
    source = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 100)
    (recipe,) = source.recipes
    carry = write(source, recipe, DOCUMENTS, (100,), carries=(True,))[-1]
    with pytest.raises(SourceError, match=r"offset 5 .* no document of the split any more"):
        reopened(replace(source, skips=frozenset({5})), recipe, carry, DOCUMENTS)


def test_records_near_each_other_are_read_in_one_go() -> None:
    """And what lies far between them is not read."""
    source = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 10_000)
    (recipe,) = source.recipes
    records = [text(n, "ab") for n in (3, 5, 5 + NEAR_OFFSETS, 9_000)]
    carry = write(source, recipe, records, carries=(True,))[-1]
    reopening = Reopening(recipe, source.stages, resume_point(carry))
    assert list(reopening.ranges) == [(3, 6 + NEAR_OFFSETS), (9_000, 9_001)]


def test_records_are_compared_where_a_carry_has_the_open_blocks_by_value() -> None:
    """Those that the source still holds; what it lost needs not be there."""
    source = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 100)
    (recipe,) = source.recipes
    mill = source.mill()
    mill.feed(DOCUMENTS)
    carry = mill.chains["train"].carry(12, by_value=True)
    assert carry is not None
    point = resume_point(carry)
    for first, changed, refused in ((0, None, False), (4, 3, False), (4, 8, True), (0, 3, True)):
        log = [r._replace(value=b"?" * len(r.value or b"")) if r.offset == changed else r for r in DOCUMENTS[first:]]
        reopening = Reopening(recipe, source.stages, point, source_first=first)
        assert list(reopening.ranges) == [(first, 12)]
        if refused:
            with pytest.raises(SourceError, match=f"offset {changed} .* another record now"):
                reopening.take(log)
        else:
            reopening.take(log)
            assert reopening.point() == point
