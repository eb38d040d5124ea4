"""One raw partition with several chains: they are milled together, and each is as if it were alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast
from unittest.mock import DEFAULT, Mock, patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.mills import RECIPE, Source, assert_follow, divide, flush, make_source, named, text, tiny_bpe, write
from tests.strategies import feed_sizes, message_bytes, record_lists, sources
from tokenmill.app.milling import columns
from tokenmill.app.milling import partition_mill as partition
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import Engine, EngineName, TokenBatch, TokenizerFile, open_engine
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.app.milling.training_tokenizer import train_tokenizer
from tokenmill.errors import PanicError, RecordError
from tokenmill.reading.continuing import ResumePoint, resume_point
from tokenmill.records import Record
from tokenmill.wire.message import Message

TWO = replace(RECIPE, shards=2, splits=(("train", 1), ("validation", 1)))


def _feed(mill: PartitionMill, records: list[Record], sizes: list[int]) -> dict[str, list[Message]]:
    messages: dict[str, list[Message]] = {split: [] for split in mill.chains}
    for feed in divide(records, sizes):
        for split, found in mill.feed(feed).messages.items():
            messages[split] += found
    return messages


@given(
    source=sources,
    records=record_lists(),
    start=st.integers(0, 4),
    skips=st.frozensets(st.integers(0, 12), max_size=3),
    sizes=feed_sizes,
    size=message_bytes,
    part=st.sampled_from([1, 3, 4096]),
)
def test_every_chain_of_a_partition_is_its_reference(
    *, source: Source, records: list[Record], start: int, skips: frozenset[int], sizes: list[int], size: int, part: int
) -> None:
    """From any start, with a skip list, for any splits, feeds and parts of a feed: byte for byte."""
    source = replace(source, start=start, skips=skips)
    with patch.object(columns, "PART_RECORDS", part):
        messages = _feed(source.mill(message_bytes=size), records, sizes)
    for recipe in source.recipes:
        assert_follow(messages[recipe.split], source.blocks(recipe, records), recipe)


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
    written = _feed(mill, [record for record in records if record.offset >= mill.next_offset], again)
    for recipe, first in zip(source.recipes, firsts, strict=True):
        assert_follow(written[recipe.split], source.blocks(recipe, records), recipe, first)


@given(sources, record_lists(), feed_sizes)
def test_every_record_is_accounted_for_in_every_chain(source: Source, records: list[Record], sizes: list[int]) -> None:
    """The outcomes of each chain add up, and over all chains each record is kept, filtered or refused at most once."""
    mill = source.mill()
    dead = [outcome for feed in divide(records, sizes) for outcome in mill.feed(feed).dead_letters]
    totals = [chain.totals for chain in mill.chains.values()]
    assert all(total.balanced and total.records == len(records) for total in totals)
    owned = sum(t.kept + t.filtered.total() + t.dead_lettered.total() for t in totals)
    nothing = sum(record.value is None for record in records)
    assert owned <= len(records) - nothing
    if len(source.recipes) == sum(size for _, size in source.recipes[0].splits) == source.recipes[0].shards:
        assert owned == len(records) - nothing
    assert len(dead) >= sum(total.dead_lettered.total() for total in totals)


@given(sources, record_lists(), feed_sizes)
def test_every_undecodable_record_is_a_dead_letter_once(
    source: Source, records: list[Record], sizes: list[int]
) -> None:
    """Whichever split owns it, none included; those of other splits' chains are not repeated."""
    mill = source.mill()
    dead = [outcome for feed in divide(records, sizes) for outcome in mill.feed(feed).dead_letters]
    wanted = [r for r in records if source.stages.outcome(r).kind is Kind.DEAD_LETTERED]
    assert [outcome.record for outcome in dead] == wanted
    assert all(outcome.reason for outcome in dead)


def test_documents_that_no_chain_needs_are_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chain is far ahead: its documents are counted as wanted only from its own cursor on."""
    source = make_source(TWO)
    records = [named(offset, offset, "abcdef") for offset in range(40)]
    train = write(source, source.recipes[0], records)
    assert train
    mill = source.mill([resume_point(train[-1]), None])
    asked = list[Sequence[str]]()
    _listen(monkeypatch, RawBytes, asked)
    mill.feed(records)
    splits = [source.stages.outcome(record).split for record in records]
    assert 0 < splits.count("validation") <= sum(map(len, asked)) < len(records)


def test_batches_for_the_engine_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many documents, and documents larger than a batch: the blocks are the same, and no document is left out."""
    engine, batches = tiny_bpe(), list[Sequence[str]]()
    _listen(monkeypatch, type(engine), batches)
    source = make_source(replace(RECIPE, dtype="uint16"), engine=engine)
    records = [text(offset, "ab" * (offset % 30) + "b") for offset in range(100)]
    blocks = source.blocks(source.recipes[0], records)
    for documents, characters in ((1, 1000), (7, 1000), (100, 1), (100, 40)):
        monkeypatch.setattr(columns, "PART_RECORDS", documents)
        monkeypatch.setattr(partition, "BATCH_CHARACTERS", characters)
        batches.clear()
        assert_follow(source.mill().feed(records).messages["train"], blocks, source.recipes[0])
        assert [text for texts in batches for text in texts] == ["ab" * (offset % 30) + "b" for offset in range(100)]
        assert max(map(len, batches)) <= documents
        assert all(sum(map(len, texts)) <= characters or len(texts) == 1 for texts in batches)


def _listen(monkeypatch: pytest.MonkeyPatch, engine: type[Engine], batches: list[Sequence[str]]) -> None:
    """Note what engines of this type are given."""
    encode = engine.encode

    def listen(self: Engine, texts: Sequence[str]) -> TokenBatch:
        batches.append(texts)
        return encode(self, texts)

    monkeypatch.setattr(engine, "encode", listen)


def test_milled_says_how_much_was_read() -> None:
    """In bytes of all values, kept or not."""
    milled = make_source().mill().feed([text(0, "abc"), text(1, ""), text(2, "de")])
    assert milled.value_bytes == sum(len(text(0, part).value or b"") for part in ("abc", "", "de"))


PANICKING = replace(TWO, dtype="uint16", vocabulary_size=257, end_of_document=256, max_text_bytes=10_000)


@pytest.fixture(scope="module")
def panicking_source() -> Source:
    """Return a source whose tokenizer panics on some texts, in two splits."""
    return make_source(PANICKING, engine=open_engine(TokenizerFile("panicking", panicking()), "tokenizers"))


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.slow
def test_text_on_which_the_tokenizer_panics_is_a_dead_letter(panicking_source: Source, size: int) -> None:
    """Of its split, once, in the order of offsets, whatever came with it; every chain is its reference."""
    values = ["one", HARMFUL, "two", "", f"but {HARMFUL}", "four", "\ufeff", "five"]
    records = [*(text(offset, value) for offset, value in enumerate(values)), flush(len(values))]
    mill = panicking_source.mill()
    fed = [mill.feed(feed) for feed in divide(records, [size])]
    letters = [out for milled in fed for out in milled.dead_letters]
    assert [(out.record.offset, out.reason, out.exception) for out in letters] == [
        (offset, "tokenizer_failed", "PanicException") for offset in (1, 4)
    ]
    owners = [panicking_source.stages.outcome(records[offset]).split for offset in (1, 4)]
    assert [out.split for out in letters] == owners
    assert len(set(owners)) == 2
    for recipe in panicking_source.recipes:
        reference = panicking_source.reference(recipe)
        messages = [message for milled in fed for message in milled.messages[recipe.split]]
        assert_follow(messages, list(reference.blocks(records)), recipe)
        totals = mill.chains[recipe.split].totals
        assert totals == reference.totals
        assert totals.balanced
        assert totals.dead_lettered == {"tokenizer_failed": 1}


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
    mill = source.mill()
    milled = mill.feed(records)
    assert [(out.record.offset, out.reason) for out in milled.dead_letters] == [(1, "normalized_too_large")]
    assert milled.dead_letters[0].split == source.stages.outcome(records[1]).split
    for one in source.recipes:
        reference = source.reference(one)
        assert_follow(milled.messages[one.split], list(reference.blocks(records)), one)
        assert mill.chains[one.split].totals == reference.totals


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
    """Nobody knows which it was."""
    source = make_source()
    mill = source.mill()
    once = Mock(side_effect=[PanicError("native code panicked"), *[DEFAULT] * 9], wraps=source.stages.decoder.many)
    with (
        patch.object(type(source.stages.decoder), "many", once),
        pytest.raises(PanicError, match="in the records at offsets 3 to 4, native code panicked"),
    ):
        mill.feed([text(3, "good"), text(4, "good")])
