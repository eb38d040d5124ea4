"""Sources, mills and chains for tests: real messages, milled from records, and the reference's answer to the same."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from tokenizers import Tokenizer

from tokenmill.app.milling.columns import ChainOutcomes, OutcomeColumns, RecordColumns
from tokenmill.app.milling.outcomes import Stages
from tokenmill.app.milling.packing.document_shapes import document_shape
from tokenmill.app.milling.partition_mill import ChainMill, Milled, PartitionMill
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import RAW_BYTES, Engine, TokenBatch, TokenizerFile, open_engine
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.documents import FLUSH_HEADER, Record
from tokenmill.reading import ResumePoint, genesis_point, resume_point
from tokenmill.recipe import RAW_BYTES_SHA256, Recipe
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message

RAW = TokenizerFile(RAW_BYTES, None)
PARTITION = 3
SILENT = "é"
"""A text of this alone has no tokens for `tiny_bpe`."""

RECIPE = Recipe(
    raw_topic="raw-text",
    start="earliest",
    decode="auto",
    text_fields=("text", "content"),
    id_field="id",
    metadata_fields=(),
    max_text_bytes=1000,
    max_id_bytes=20,
    max_fields_bytes=40,
    normalize="none",
    min_chars=0,
    function=None,
    steps=({"name": "not_empty"},),
    shards=1,
    splits=(("train", 1),),
    split_by="id",
    split="train",
    tokenizer_sha256=RAW_BYTES_SHA256,
    end_of_document=0,
    vocabulary_size=256,
    probe="0" * 64,
    packing="concat",
    block_tokens=4,
    dtype="uint8",
)
"""A stream of raw bytes that takes every record. Tests replace what they are about."""


@cache
def tiny_bpe() -> Engine:
    from tokenizers import normalizers  # noqa: PLC0415 - version 1 has none

    tokenizer: Tokenizer = train_tokenizer(["ab aab b\n"] * 2 + ['{"text": "aaaabbbb"}'], vocabulary_size=270)
    tokenizer.normalizer = normalizers.Replace(SILENT, "")
    return open_engine(TokenizerFile("tiny", tokenizer.to_str().encode()))


@dataclass(frozen=True)
class Source:
    """One raw partition's way into all its chains, and what is needed to mill it again and again."""

    stages: Stages
    recipes: tuple[Recipe, ...]
    """One a split."""
    start: int = 0
    skips: frozenset[int] = frozenset()

    def chain(self, recipe: Recipe, point: ResumePoint | None = None, message_bytes: int = 1) -> ChainMill:
        begin = genesis_point(self.start, genesis_hash(recipe.fingerprint, PARTITION))
        return ChainMill(recipe, point if point is not None else begin, message_bytes=message_bytes)

    def mill(self, points: Sequence[ResumePoint | None] = (), message_bytes: int = 1) -> PartitionMill:
        pairs = zip(self.recipes, points or [None] * len(self.recipes), strict=True)
        chains = [self.chain(recipe, point, message_bytes) for recipe, point in pairs]
        return PartitionMill(self.stages, chains, self.skips)

    def reference(self, recipe: Recipe) -> Reference:
        return Reference(recipe, self.stages, PARTITION, self.start, self.skips)

    def blocks(self, recipe: Recipe, records: Sequence[Record]) -> list[ReferenceBlock]:
        return list(self.reference(recipe).blocks(records))


def make_source(
    recipe: Recipe = RECIPE, *, engine: Engine | None = None, start: int = 0, skips: frozenset[int] = frozenset()
) -> Source:
    stages = open_stages(recipe, RAW)
    if engine is not None:
        stages = replace(stages, engine=engine)
    recipes = tuple(replace(recipe, split=name) for name, _ in recipe.splits)
    return Source(stages, recipes, start, skips)


def chain_outcomes(source: Source, recipe: Recipe, records: Sequence[Record], tokens: Sequence[int]) -> ChainOutcomes:
    """Return what a chain makes of the records, where each kept document has so many tokens (all of them 0)."""
    fetch = RecordColumns.of(records)
    columns = OutcomeColumns.sort(source.stages, fetch, source.skips)
    bounds = np.cumsum([0, *tokens])
    batch = TokenBatch(np.zeros(bounds[-1], np.uint32), bounds)
    kept = columns.kept[recipe.split]
    return ChainOutcomes.of(recipe, fetch, columns, kept, batch, shape=document_shape(recipe))


def text(offset: int, value: str) -> Record:
    return Record(offset, 1000 + offset, None, value.encode())


def named(offset: int, name: str | int, value: str, **fields: str | float | None) -> Record:
    return Record(offset, 1000 + offset, None, json.dumps({"id": name, "text": value, **fields}).encode())


def tombstone(offset: int) -> Record:
    return Record(offset, 1000 + offset, b"key", None)


def flush(offset: int) -> Record:
    return Record(offset, 1000 + offset, None, None, (FLUSH_HEADER,))


def divide(records: Sequence[Record], sizes: Sequence[int]) -> Iterator[Sequence[Record]]:
    start = 0
    while sizes and start < len(records):
        for size in sizes:
            yield records[start : start + size]
            start += size
    if start < len(records):
        yield records[start:]


def cut_blocks(messages: Sequence[Message], recipe: Recipe) -> list[tuple[int, bytes, bytes]]:
    size = recipe.block_bytes
    return [
        (message.first + n, bytes(message.tokens[n * size : (n + 1) * size]), entry)
        for message in messages
        for n, entry in enumerate(message.entries)
    ]


def assert_follow(
    messages: Sequence[Message], blocks: Sequence[ReferenceBlock], recipe: Recipe, first: int = 0
) -> None:
    """Check that the messages are the reference's blocks from ``first`` on, and where they leave the chain."""
    written = cut_blocks(messages, recipe)
    assert written == [(block.number, block.tokens, block.entry) for block in blocks[first:]]
    chains = [genesis_hash(recipe.fingerprint, PARTITION), *(block.chain for block in blocks)]
    for message in messages:
        assert (message.before, message.after) == (chains[message.first], chains[message.end])
        assert message.fingerprint == recipe.fingerprint
        if not message.is_carry:
            last = blocks[message.end - 1]
            assert (message.cursor, message.totals, message.references) == (last.cursor, last.totals, last.references)
            assert message.totals.pack() == last.totals.pack()
        assert message.totals.balanced


def mill_as_reference(
    source: Source,
    records: Sequence[Record],
    sizes: Sequence[int] = (),
    *,
    message_bytes: int = 1,
    plain: Source | None = None,
) -> tuple[PartitionMill, list[Milled]]:
    """Mill the records, in feeds of these sizes; return the mill and what each feed gave.

    Checks that blocks and totals of every chain are the reference's: that of ``plain``, where the stages are others.
    """
    mill = source.mill(message_bytes=message_bytes)
    fed = [mill.feed(feed) for feed in divide(records, sizes)]
    for recipe in source.recipes:
        reference = (plain or source).reference(recipe)
        messages = [message for milled in fed for message in milled.messages[recipe.split]]
        assert_follow(messages, list(reference.blocks(records)), recipe)
        totals = mill.chains[recipe.split].totals
        assert totals == reference.totals
        assert totals.pack() == reference.totals.pack()
        assert totals.balanced
    return mill, fed


def write(
    source: Source,
    recipe: Recipe,
    records: Sequence[Record],
    sizes: Sequence[int] = (1,),
    *,
    message_bytes: int = 1,
    carries: Sequence[bool] = (False,),
    after: Message | None = None,
) -> list[Message]:
    """Return what one writer of the chain sends, a carry after those feeds where ``carries`` (again and again) says so.

    The writer begins ``after`` a message, or at the chain's beginning.
    """
    chain = source.chain(recipe, resume_point(after) if after is not None else None, message_bytes)
    mill = PartitionMill(source.stages, [chain], source.skips)
    messages: list[Message] = []
    for number, feed in enumerate(divide(records, sizes)):
        messages += mill.feed(feed).messages[recipe.split]
        if carries[number % len(carries)]:
            carry = chain.carry(feed[-1].offset + 1 if feed else 0)
            messages += [carry] if carry is not None else []
    return messages
