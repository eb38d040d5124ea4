"""The right answer: one chain computed record by record, document by document, token by token.

Slow and plain on purpose. It shares with the fast path the stages that turn one record into one outcome, the engine,
and nothing else: packing (`reference_packings`), pieces, chain hash, cursor and totals are written again, from the
format's description.
Tests and `tokenmill verify` compare its blocks with those on Kafka and on disk byte for byte.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from struct import pack
from typing import Self
from zlib import crc32

import xxhash

from tokenmill.documents import Document
from tokenmill.reading.continuing import ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.wire.chain import Cursor
from tokenmill.wire.totals import LANGUAGE, Amount, Totals

from .outcomes import NO_TOKENS, Kind, Outcome, Stages
from .packing.reference_packings import ITEM, REFERENCES, LeavingBlock, Pieces, ReferencePacking


@dataclass(frozen=True, slots=True)
class ReferenceBlock:
    """One block as it must be on Kafka and on disk, and where the chain is after it."""

    number: int
    tokens: bytes
    entry: bytes
    chain: bytes
    cursor: Cursor
    totals: Totals
    references: bytes = b""
    """The blocks that are open behind it, in a packing that refers to them."""


@dataclass(slots=True)
class Reference:
    """The chain of ``recipe`` in one raw partition, from its genesis on."""

    recipe: Recipe
    stages: Stages
    partition: int
    start_offset: int
    skips: Collection[int] = ()
    totals: Totals = field(default_factory=Totals)
    _packing: ReferencePacking = field(init=False)
    _number: int = 0
    chain: bytes = field(init=False)
    """The hash after the last block so far."""

    def __post_init__(self) -> None:
        self._packing = REFERENCES[self.recipe.packing](self.recipe)
        seed = b"tokenmill chain 1" + self.recipe.fingerprint + pack("<I", self.partition)
        self.chain = xxhash.xxh3_128_digest(seed)

    @classmethod
    def resumed(
        cls, recipe: Recipe, stages: Stages, partition: int, point: ResumePoint, skips: Collection[int] = ()
    ) -> Self:
        """Return the chain from ``point`` on. Raises ValueError where it is in the middle of a document."""
        if point.cursor.taken:
            raise ValueError(f"the point is in the middle of the document at offset {point.cursor.next_offset}")
        reference = cls(recipe, stages, partition, point.cursor.next_offset, skips, point.totals.copy())
        reference._number, reference.chain = point.cursor.block, point.chain
        reference._packing.reopen(point)
        return reference

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """These tokens and their entries, block after block; both empty where no block is open."""
        opened = self._packing.blocks
        return b"".join(self._bytes(one.tokens) for one in opened), b"".join(_entry(one.pieces) for one in opened)

    @property
    def references(self) -> bytes:
        """The open blocks as references, in a packing that has these."""
        return self._packing.references()

    def blocks(self, records: Iterable[SourceRecord]) -> Iterator[ReferenceBlock]:
        """Yield the blocks that the records fill, in order; call again with later records to continue."""
        for record in records:
            if record.offset >= self.start_offset:
                passed: list[Document] = []
                outcome = self.stages.outcome(record, self.skips, passed)
                yield from self._add(record, outcome, passed)

    def _add(self, record: SourceRecord, outcome: Outcome, passed: list[Document]) -> Iterator[ReferenceBlock]:
        kind = outcome.kind_in(self.recipe.split)
        tokens: list[int] = []
        reason = outcome.reason
        if kind is Kind.KEPT and outcome.document is not None:
            batch = self.stages.engine.encode([outcome.document.text])
            ids = batch.ids.tolist()
            tokens = [*self.recipe.begin_of_document, *ids, *self.recipe.after]
            if batch.failed:
                kind, reason = Kind.DEAD_LETTERED, batch.failed[0].reason
            elif not ids:
                kind, reason = Kind.FILTERED, NO_TOKENS
            elif too := self._packing.dropped(tokens):
                kind, reason = Kind.FILTERED, too
        leaving: Iterator[LeavingBlock] = iter(())
        if kind is Kind.KEPT:
            leaving = self._packing.add(record.offset, tokens, self._meta(passed[-1]), _remembered(record)[1])
        elif kind is Kind.FLUSH:
            leaving = self._packing.flush(record.offset)
        is_counted = False
        for left in leaving:
            if left.finished:
                self._count_all(kind, reason, outcome, passed, tokens)
                is_counted = True
            yield self._close(record, left)
        if not is_counted:
            self._count_all(kind, reason, outcome, passed, tokens)

    def _close(self, record: SourceRecord, left: LeavingBlock) -> ReferenceBlock:
        self.totals.packing.update(left.figures)
        cursor = Cursor(record.offset + left.finished, left.taken, self._number + 1, *_remembered(record))
        tokens, entry = self._bytes(left.tokens), _entry(left.pieces)
        self.chain = xxhash.xxh3_128_digest(self.chain + tokens + entry)
        totals = self.totals.copy()
        block = ReferenceBlock(self._number, tokens, entry, self.chain, cursor, totals, self.references)
        self._number += 1
        return block

    def _bytes(self, tokens: list[int]) -> bytes:
        return pack(f"<{len(tokens)}{ITEM[self.recipe.dtype]}", *tokens)

    def _meta(self, document: Document) -> bytes:
        meta: dict[str, object] = {}
        if document.id is not None:
            meta["id"] = document.id
        fields = {name: document.fields[name] for name in self.recipe.metadata_fields if name in document.fields}
        if fields:
            meta["fields"] = fields
        if not meta:
            return b""
        return json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def _count_all(self, kind: Kind, reason: str, outcome: Outcome, passed: list[Document], tokens: list[int]) -> None:
        self._count(kind, reason)
        if kind is not Kind.OTHER_SPLIT:
            self._count_steps(outcome, passed)
        if kind is Kind.KEPT:
            given = self._packing.given(tokens)
            self._count_kept(passed[-1], given)
            self.totals.tokens += given
            self.totals.value_bytes += len(outcome.record.value or b"")

    def _count(self, kind: Kind, reason: str) -> None:
        self.totals.records += 1
        match kind:
            case Kind.KEPT:
                self.totals.kept += 1
            case Kind.FILTERED:
                self.totals.filtered[reason] += 1
            case Kind.DEAD_LETTERED:
                self.totals.dead_lettered[reason] += 1
            case Kind.TOMBSTONE:
                self.totals.tombstones += 1
            case Kind.FLUSH:
                self.totals.flushes += 1
            case Kind.OTHER_SPLIT:
                self.totals.other_split += 1

    def _count_steps(self, outcome: Outcome, passed: list[Document]) -> None:
        """Count a document at each step that it came to, where the totals have figures of each step."""
        figures = self.totals.figures
        labels = self.stages.counted_labels if passed else ()
        for number, label in enumerate(labels):
            step = figures.step(label)
            if number >= len(passed):
                continue  # an earlier step dropped it
            came = Amount(1, len(passed[number].text.encode()))
            step.taken = step.taken.plus(came)
            if number + 1 < len(passed):
                step.passed = step.passed.plus(Amount(1, len(passed[number + 1].text.encode())))
            elif outcome.kind is Kind.FILTERED:
                step.filtered[outcome.reason] = step.filtered.get(outcome.reason, Amount()).plus(came)
            else:
                step.refused = step.refused.plus(came)

    def _count_kept(self, document: Document, tokens: int) -> None:
        figures, labels = self.totals.figures, self.stages.counted_labels
        if labels:
            figures.token_lengths[tokens.bit_length() - 1] += 1
            figures.text_lengths[len(document.text.encode()).bit_length() - 1] += 1
        if LANGUAGE in labels:
            language = str(document.fields.get(LANGUAGE))
            figures.languages[language] = figures.languages.get(language, Amount()).plus(Amount(1, tokens))


def _remembered(record: SourceRecord) -> tuple[int, int, int]:
    return record.offset, crc32((record.key or b"") + (record.value or b"")), record.timestamp


def _entry(pieces: Pieces) -> bytes:
    entry = pack("<II", len(pieces), sum(len(meta) for *_, meta in pieces))
    for start, offset, position, meta in pieces:
        entry += pack("<IIqq", start, len(meta), offset, position)
    return entry + b"".join(meta for *_, meta in pieces)
