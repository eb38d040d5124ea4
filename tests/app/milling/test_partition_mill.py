"""One raw partition and its chains: what is fed, what comes out, what is continued."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from unittest.mock import DEFAULT, Mock, patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from tests.app.milling.test_columns import with_whims
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.mills import (
    PARTITION,
    RECIPE,
    Source,
    assert_follow,
    chain_outcomes,
    divide,
    flush,
    make_source,
    mill_as_reference,
    named,
    text,
    tiny_bpe,
    tombstone,
    write,
)
from tests.strategies import feed_sizes, message_bytes, record_lists, sources
from tokenmill.app.milling import columns
from tokenmill.app.milling import partition_mill as partition
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.packing.fit_packing import NEAR_OFFSETS, Reopening
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill, open_packing
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.reference import Reference
from tokenmill.app.milling.tokenizers import EngineName, TokenizerFile, open_engine
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.documents import Record
from tokenmill.errors import PanicError, RecordError, SettingsError, SourceError
from tokenmill.reading import ResumePoint, genesis_point, resume_point
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import Cursor, genesis_hash, record_crc
from tokenmill.wire.message import HEADER_OVERHEAD, Message, decode_message, encode_header
from tokenmill.wire.pieces import PADDING, decode_entry, split_references
from tokenmill.wire.totals import Figures

flags = st.lists(st.booleans(), min_size=1, max_size=4)


def fitting(source: Source, most_open: int, age: int) -> Source:
    parameters = {"open_blocks": most_open, "max_age_offsets": age}
    recipes = tuple(replace(r, packing="fit", packing_parameters=parameters) for r in source.recipes)
    return replace(source, recipes=recipes)


def reopened(source: Source, recipe: Recipe, message: Message, records: list[Record]) -> ResumePoint:
    """Return the point behind a message, its open blocks made of the records again where it refers to these."""
    reopening = Reopening(recipe, source.stages, resume_point(message), source.skips)
    for start, end in reopening.ranges:
        reopening.take([record for record in records if start <= record.offset < end])
    return reopening.point()


fit_sources = st.builds(fitting, sources, st.integers(1, 4), st.sampled_from([1, 2, 5, 100]))
PARTS: dict[str, Any] = {"block_tokens": 3, "begin_of_document": (1,), "end_of_document": 2, "padding": 3}
IN_ROWS = replace(RECIPE, packing="rows", packing_parameters={"long": "split"}, **PARTS)
IN_CHUNKS = replace(RECIPE, packing="chunks", packing_parameters={"chunk_tokens": 2}, segment_tokens=1, **PARTS)
LONG: dict[str, Any] = {"records": [text(0, "abcdef"), text(1, "a")], "sizes": [], "size": 1, "carries": [False]}
LONG |= {"old": 10, "again": [1]}


@given(
    source=sources | fit_sources | with_whims,
    records=record_lists(max_size=24),
    sizes=feed_sizes,
    size=message_bytes,
    carries=flags,
    at=st.integers(0, 60),
    old=st.integers(0, 10),
    again=feed_sizes,
)
@example(source=make_source(IN_ROWS), at=3, **LONG)
@example(source=make_source(IN_CHUNKS), at=2, **LONG)
def test_messages_are_the_reference_blocks_and_a_chain_goes_on_after_any_of_them(
    *,
    source: Source,
    records: list[Record],
    sizes: list[int],
    size: int,
    carries: list[bool],
    at: int,
    old: int,
    again: list[int],
) -> None:
    """However they are cut, in any packing; carries change nothing.

    In the middle of a document or a flush as well, from any carry, by value or by reference; the same ever after. So
    does the reference between documents. Passed records are skipped.
    """
    for recipe in source.recipes:
        whole = source.reference(recipe)
        blocks = list(whole.blocks(records))
        messages = write(source, recipe, records, sizes, message_bytes=size, carries=carries)
        assert_follow(messages, blocks, recipe)
        if not messages:
            continue
        sent = messages[at % len(messages)]
        message = decode_message(encode_header(sent), bytes(sent.tokens))
        point = reopened(source, recipe, message, records)
        carry = source.chain(recipe, point).carry(message.cursor.next_offset, by_value=True)
        assert (carry is None) == message.cursor.within
        if carry is not None:
            opened = carry.open_tokens, carry.open_entry, carry.references
            assert opened == (point.open_tokens, point.open_entry, message.references)
            assert resume_point(decode_message(encode_header(carry), b"")).is_complete
            resumed = Reference.resumed(recipe, source.stages, PARTITION, point, source.skips)
            assert list(resumed.blocks(records)) == blocks[message.end :]
            assert (resumed.open_block, resumed.totals, resumed.chain) == (whole.open_block, whole.totals, whole.chain)
        mill = source.mill([point if recipe is one else None for one in source.recipes])
        rest = [record for record in records if record.offset >= message.cursor.next_offset - old]
        later = [new for feed in divide(rest, again) for new in mill.feed(feed).messages[recipe.split]]
        assert_follow(later, blocks, recipe, message.end)
        assert mill.chains[recipe.split].totals.pack() == whole.totals.pack()


@given(sources, record_lists(), feed_sizes, st.lists(st.integers(0, 6), min_size=1, max_size=4))
@pytest.mark.slow
def test_a_chain_survives_restarts(source: Source, records: list[Record], sizes: list[int], lives: list[int]) -> None:
    """A worker publishes a few messages and dies, then the next one, until nothing is left: no block is other."""
    recipe = source.recipes[0]
    published: list[Message] = []
    for life in [*lives, None]:
        after = published[-1] if published else None
        published += write(source, recipe, records, sizes, carries=(False, True), after=after)[:life]
    assert_follow(published, source.blocks(recipe, records), recipe)


@given(sources, record_lists(), feed_sizes, feed_sizes, st.integers(0, 5))
@pytest.mark.slow
def test_a_carry_holds_the_open_block_and_a_position_past_gaps(
    source: Source, records: list[Record], sizes: list[int], others: list[int], gap: int
) -> None:
    """It depends on the position alone: mills fed differently, or restarted from it, write the same one."""
    recipe = source.recipes[0]
    reference = source.reference(recipe)
    blocks = list(reference.blocks(records))
    position = (records[-1].offset + 1 if records else 0) + gap
    carries = []
    for division in (sizes, others):
        mill = source.mill()
        chain = mill.chains[recipe.split]
        for feed in divide(records, division):
            mill.feed(feed)
            assert chain.carry(position) is not None
        carries.append(chain.carry(position))
    carry = carries[0]
    assert carry is not None
    resumed = source.chain(recipe, resume_point(carry)).carry(position)
    assert carries == [carry, resumed]
    assert encode_header(carry) == encode_header(resumed or carry)
    last = records[-1] if records else None
    remembered = (last.offset, record_crc(last.key, last.value), last.timestamp) if last else (-1, 0, 0)
    assert carry.cursor == Cursor(position, 0, len(blocks), *remembered)
    assert carry.is_carry
    assert carry.open_tokens == reference.open_block[0]
    assert chain.open_tokens == len(carry.open_tokens) // np.dtype(recipe.dtype).itemsize
    assert bool(carry.open_tokens) == bool(carry.open_entry)
    assert carry.totals == chain.totals == reference.totals
    assert carry.before == carry.after == (blocks[-1].chain if blocks else genesis_hash(recipe.fingerprint, PARTITION))


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
    recipe = source.recipes[0]
    point = genesis_point(0, genesis_hash(recipe.fingerprint, PARTITION))
    chain = ChainMill(recipe, point, message_bytes=1 << 40, ends=ends)
    messages = PartitionMill(source.stages, [chain], source.skips).feed(records).messages[recipe.split]
    blocks = source.blocks(recipe, records)
    assert_follow(messages, blocks, recipe)
    assert ends & set(range(1, len(blocks) + 1)) <= {message.end for message in messages}


@pytest.mark.parametrize(("record", "tokens"), [(tombstone(5), []), (text(5, "abc"), [3]), (text(6, "abcdefgh"), [8])])
def test_a_document_partly_in_blocks_must_be_there_when_the_chain_continues(record: Record, tokens: list[int]) -> None:
    """Gone, shorter, or an outcome of another kind: blocks of two histories must not be joined."""
    source = make_source()
    point = resume_point(write(source, RECIPE, [text(5, "abcdefghij")])[0])
    chain = source.chain(RECIPE, point)
    with pytest.raises(SourceError, match="offset 5"):
        chain.feed(chain_outcomes(source, RECIPE, [record], tokens))


def test_milling_leaves_the_point_that_it_began_with_alone() -> None:
    source = make_source()
    records = [text(offset, "abc") for offset in range(3)]
    first, *_ = write(source, RECIPE, records)
    kept = replace(first.totals)
    write(source, RECIPE, records, after=first)
    assert first.totals == kept


def test_a_packing_of_another_version_is_refused() -> None:
    with pytest.raises(SettingsError, match="use the version that made the stream"):
        open_packing(replace(RECIPE, packing="best-fit"))


DOCUMENTS = [text(n, "abcde"[: 1 + n % 5]) for n in range(12)]
WIDE = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 100)
"""A source whose open blocks have room for all of `DOCUMENTS`."""
ONE_OPEN = fitting(make_source(), 1, 100)


def test_a_message_can_end_before_its_document_is_placed() -> None:
    """The fullest block is closed for it: the cursor remembers that document, and stands before it."""
    message, *_ = write(ONE_OPEN, ONE_OPEN.recipes[0], [text(0, "a"), text(1, "bc"), text(2, "defg")])
    cursor = message.cursor
    assert (cursor.next_offset, cursor.taken, cursor.last_offset, cursor.within) == (1, 0, 1, True)
    assert message.totals.kept == 1


def test_a_flush_can_be_half_done() -> None:
    """It closes the oldest block first; the flush counts once all are closed."""
    source = fitting(make_source(), 4, 100)
    first, second = write(source, source.recipes[0], [text(0, "ab"), text(1, "cd"), flush(2)])
    assert [bytes(first.tokens), bytes(second.tokens)] == [b"ab\0\0", b"cd\0\0"]
    assert [m.cursor.next_offset for m in (first, second)] == [2, 3]
    assert [m.totals.flushes for m in (first, second)] == [0, 1]


def test_totals_count_padding_documents_that_are_cut_and_blocks_with_several() -> None:
    records = [text(0, "abcde"), text(1, "f"), text(2, "ghi"), text(3, "j"), flush(4)]
    *_, last = write(ONE_OPEN, ONE_OPEN.recipes[0], records)
    assert last.totals.packing == {"cut": 1, "joined": 1, "padding": 2}


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
    (recipe,) = WIDE.recipes
    carry = write(WIDE, recipe, DOCUMENTS, (100,), carries=(True,))[-1]
    assert split_references(carry.references).rows["offset"].tolist() == list(range(12))
    log = [*DOCUMENTS[:3], *([now] if now else []), *DOCUMENTS[4:]]
    with pytest.raises(SourceError, match=f"offset 3 of raw-text, of which an open block of split train .* {said}"):
        reopened(WIDE, recipe, carry, log)
    assert reopened(WIDE, recipe, carry, DOCUMENTS).is_complete


def test_a_record_on_the_skip_list_is_refused_where_an_open_block_has_it() -> None:
    """It is passed, and the list does not take it; whoever wrote it there all the same is told."""
    (recipe,) = WIDE.recipes
    carry = write(WIDE, recipe, DOCUMENTS, (100,), carries=(True,))[-1]
    with pytest.raises(SourceError, match=r"offset 5 .* no document of the split any more"):
        reopened(replace(WIDE, skips=frozenset({5})), recipe, carry, DOCUMENTS)


def test_records_near_each_other_are_read_in_one_go() -> None:
    source = fitting(make_source(replace(RECIPE, block_tokens=64)), 4, 10_000)
    (recipe,) = source.recipes
    records = [text(n, "ab") for n in (3, 5, 5 + NEAR_OFFSETS, 9_000)]
    carry = write(source, recipe, records, carries=(True,))[-1]
    reopening = Reopening(recipe, source.stages, resume_point(carry))
    assert list(reopening.ranges) == [(3, 6 + NEAR_OFFSETS), (9_000, 9_001)]


def test_records_are_compared_where_a_carry_has_the_open_blocks_by_value() -> None:
    """Those that the source still holds; what it lost needs not be there."""
    (recipe,) = WIDE.recipes
    mill = WIDE.mill()
    mill.feed(DOCUMENTS)
    carry = mill.chains["train"].carry(12, by_value=True)
    assert carry is not None
    point = resume_point(carry)
    for first, changed, refused in ((0, None, False), (4, 3, False), (4, 8, True), (0, 3, True)):
        log = [r._replace(value=b"?" * len(r.value or b"")) if r.offset == changed else r for r in DOCUMENTS[first:]]
        reopening = Reopening(recipe, WIDE.stages, point, source_first=first)
        assert list(reopening.ranges) == [(first, 12)]
        if refused:
            with pytest.raises(SourceError, match=f"offset {changed} .* another record now"):
                reopening.take(log)
        else:
            reopening.take(log)
            assert reopening.point() == point


TWO = replace(RECIPE, shards=2, splits=(("train", 1), ("validation", 1)))


@given(
    st.builds(
        replace, sources | with_whims, start=st.integers(0, 4), skips=st.frozensets(st.integers(0, 12), max_size=3)
    ),
    *(record_lists(), feed_sizes, message_bytes, st.sampled_from([1, 3, 4096])),
)
def test_every_chain_of_a_partition_is_its_reference_and_every_record_is_accounted_for(
    source: Source, records: list[Record], sizes: list[int], size: int, part: int
) -> None:
    """From any start, with a skip list, for any splits, feeds and parts of a feed: byte for byte.

    The outcomes of each chain add up, and over all chains each record is kept, filtered or refused at most once. What
    cannot be decoded is a dead letter once, whichever split owns it, none included.
    """
    with patch.object(columns, "PART_RECORDS", part):
        mill, fed = mill_as_reference(source, records, sizes, message_bytes=size)
    taken = [record for record in records if record.offset >= source.start]
    dead = [outcome for milled in fed for outcome in milled.dead_letters]
    assert all(outcome.reason for outcome in dead)
    assert [outcome.record for outcome in dead] == [
        record for record in taken if source.stages.outcome(record, source.skips).kind is Kind.DEAD_LETTERED
    ]
    assert sum(milled.value_bytes for milled in fed) == sum(len(record.value or b"") for record in taken)
    totals = [chain.totals for chain in mill.chains.values()]
    assert all(total.records == len(taken) for total in totals)
    if not source.stages.counted_labels:  # without a list of steps, streams have the messages that they always had
        assert all(total.figures == Figures() and b"figures" not in total.pack() for total in totals)
    assert len(dead) >= sum(total.dead_lettered.total() for total in totals)
    owned = sum(t.kept + t.filtered.total() + t.dead_lettered.total() for t in totals)
    values = sum(record.value is not None for record in taken)
    everything_is_owned = sum(size for _, size in source.recipes[0].splits) == source.recipes[0].shards
    assert owned == values if everything_is_owned else owned <= values


@given(sources, record_lists(), feed_sizes, feed_sizes, st.data())
@pytest.mark.slow
def test_chains_resume_at_places_of_their_own(
    source: Source, records: list[Record], sizes: list[int], again: list[int], data: st.DataObject
) -> None:
    """The partition starts at the lowest of its chains' cursors, and each chain skips what it has."""
    points: list[ResumePoint | None] = []
    firsts = []
    for recipe in source.recipes:
        messages = write(source, recipe, records, sizes, carries=(False, True))
        last = data.draw(st.sampled_from([None, *messages]))
        points.append(resume_point(last) if last is not None else None)
        firsts.append(last.end if last is not None else 0)
    mill = source.mill(points)
    assert mill.next_offset == min(point.cursor.next_offset if point is not None else 0 for point in points)
    rest = [record for record in records if record.offset >= mill.next_offset]
    fed = [mill.feed(feed).messages for feed in divide(rest, again)]
    for recipe, first in zip(source.recipes, firsts, strict=True):
        written = [message for messages in fed for message in messages[recipe.split]]
        assert_follow(written, source.blocks(recipe, records), recipe, first)


def test_documents_that_no_chain_needs_are_not_tokenized() -> None:
    """One chain is far ahead: its documents are counted as wanted only from its own cursor on."""
    source = make_source(TWO)
    records = [named(offset, offset, "abcdef") for offset in range(40)]
    train = write(source, source.recipes[0], records)
    assert train
    mill = source.mill([resume_point(train[-1]), None])
    with patch.object(RawBytes, "encode", autospec=True, side_effect=RawBytes.encode) as encode:
        mill.feed(records)
    asked = [call.args[1] for call in encode.call_args_list]
    splits = [source.stages.outcome(record).split for record in records]
    assert 0 < splits.count("validation") <= sum(map(len, asked)) < len(records)


def test_batches_for_the_engine_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many documents, and documents larger than a batch: the blocks are the same, and no document is left out."""
    engine = tiny_bpe()
    source = make_source(replace(RECIPE, dtype="uint16"), engine=engine)
    records = [text(offset, "ab" * (offset % 30) + "b") for offset in range(100)]
    blocks = source.blocks(source.recipes[0], records)
    for documents, characters in ((1, 1000), (7, 1000), (100, 1), (100, 40)):
        monkeypatch.setattr(columns, "PART_RECORDS", documents)
        monkeypatch.setattr(partition, "BATCH_CHARACTERS", characters)
        with patch.object(type(engine), "encode", autospec=True, side_effect=type(engine).encode) as encode:
            assert_follow(source.mill().feed(records).messages["train"], blocks, source.recipes[0])
        batches = [call.args[1] for call in encode.call_args_list]
        assert [text for texts in batches for text in texts] == ["ab" * (offset % 30) + "b" for offset in range(100)]
        assert max(map(len, batches)) <= documents
        assert all(sum(map(len, texts)) <= characters or len(texts) == 1 for texts in batches)


PANICKING = replace(TWO, dtype="uint16", vocabulary_size=257, end_of_document=256, max_text_bytes=10_000)


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.slow
def test_text_on_which_the_tokenizer_panics_is_a_dead_letter(size: int) -> None:
    """Of its split, once, in the order of offsets, whatever came with it; every chain is its reference."""
    values = ["one", HARMFUL, "two", "", f"but {HARMFUL}", "four", "\ufeff", "five"]
    records = [*(text(offset, value) for offset, value in enumerate(values)), flush(len(values))]
    source = make_source(PANICKING, engine=open_engine(TokenizerFile("panicking", panicking()), "tokenizers"))
    mill, fed = mill_as_reference(source, records, [size])
    letters = [out for milled in fed for out in milled.dead_letters]
    assert [(out.record.offset, out.reason, out.exception) for out in letters] == [
        (offset, "tokenizer_failed", "PanicException") for offset in (1, 4)
    ]
    owners = [source.stages.outcome(records[offset]).split for offset in (1, 4)]
    assert [out.split for out in letters] == owners
    assert len(set(owners)) == 2
    assert [chain.totals.dead_lettered for chain in mill.chains.values()] == [{"tokenizer_failed": 1}] * 2


@pytest.mark.parametrize("kind", ["tokenizers", "gigatoken"])
@pytest.mark.slow
def test_text_that_normalizing_makes_too_long_is_a_dead_letter(kind: EngineName) -> None:
    """By the recipe or by the tokenizer itself, with either engine; every chain is its reference."""
    tokenizer = train_tokenizer(["ab aab b"], vocabulary_size=260)
    tokenizer.normalizer = normalizers.NFKC()
    file = TokenizerFile("normalizing", tokenizer.to_str().encode())
    recipe, stages = complete(replace(TWO, max_text_bytes=0), file, None, kind)
    assert stages.engine.kind == kind
    source = Source(stages, tuple(replace(recipe, split=name) for name, _ in recipe.splits))
    long = "\ufdfa" * 67_600
    values = ["one", long, "two", "\ufdfa", "four"]
    records = [text(offset, value) for offset, value in enumerate(values)]
    _, (milled,) = mill_as_reference(source, records)
    assert [(out.record.offset, out.reason) for out in milled.dead_letters] == [(1, "normalized_too_large")]
    assert milled.dead_letters[0].split == source.stages.outcome(records[1]).split


def test_panic_that_is_no_texts_halts_and_names_the_record() -> None:
    """Native code that decodes, say; the note stands at the record, and nothing of the fetch was published."""
    source, told = make_source(), []

    class Decoder:
        def many(self, values: Sequence[bytes]) -> tuple[DocumentColumns, list[tuple[int, RecordError]]]:
            if b"bad" in values:
                Tokenizer.from_str(panicking().decode()).encode(HARMFUL)
            return source.stages.decoder.many(values)

    chains = [source.chain(recipe) for recipe in source.recipes]
    stages = replace(source.stages, decoder=cast("Any", Decoder()))
    mill = PartitionMill(stages, chains, note=lambda first, last: told.append((first, last)))
    with pytest.raises(PanicError, match=r"over the record at offset 5, native code .*retry-limit"):
        mill.feed([text(3, "good"), text(4, "good"), text(5, "bad"), text(6, "good")])
    assert told[-1] == (5, 5)
    assert mill.next_offset == 0


def test_panic_that_does_not_come_again_names_all_records() -> None:
    source = make_source()
    mill = source.mill()
    once = Mock(side_effect=[PanicError("native code panicked"), *[DEFAULT] * 9], wraps=source.stages.decoder.many)
    with (
        patch.object(type(source.stages.decoder), "many", once),
        pytest.raises(PanicError, match="in the records at offsets 3 to 4, native code panicked"),
    ):
        mill.feed([text(3, "good"), text(4, "good")])
