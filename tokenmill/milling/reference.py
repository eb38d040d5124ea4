"""The right answer: one chain computed record by record, document by document, token by token.

Slow and plain on purpose. It shares with the fast path the stages that turn one record into one outcome, the engine,
and nothing else: packing, pieces, chain hash, cursor and totals are written again, from the format's description.
Tests and `tokenmill verify` compare its blocks with those on Kafka and on disk byte for byte.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from struct import calcsize, iter_unpack, pack, unpack, unpack_from
from typing import Self
from zlib import crc32

import xxhash

from tokenmill.documents import Document
from tokenmill.milling.fit_reference import FitReference, LeavingBlock, reopened
from tokenmill.milling.outcomes import NO_TOKENS, Kind, Outcome, Stages
from tokenmill.reading.resume import ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.wire.cursor import Cursor
from tokenmill.wire.figures import LANGUAGE, Amount
from tokenmill.wire.totals import Totals

_ITEM = {"uint8": "B", "uint16": "H", "uint32": "I"}


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
    """The blocks that are open behind it, in a packing with several."""


@dataclass(slots=True)
class Reference:
    """The chain of ``recipe`` in one raw partition, from its genesis on."""

    recipe: Recipe
    stages: Stages
    partition: int
    start_offset: int
    skips: Collection[int] = ()
    totals: Totals = field(default_factory=Totals)
    """Over all records read so far."""
    _tokens: list[int] = field(default_factory=list)
    _pieces: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    _number: int = 0
    _chain: bytes = b""
    _fit: FitReference | None = None

    def __post_init__(self) -> None:
        """Begin before block 0."""
        if self.recipe.packing == "fit":
            self._fit = FitReference(
                self.recipe.block_tokens, **self.recipe.packing_parameters, padding=self.recipe.padding_id
            )
        seed = b"tokenmill chain 1" + self.recipe.fingerprint + pack("<I", self.partition)
        self._chain = xxhash.xxh3_128_digest(seed)

    @classmethod
    def resumed(
        cls, recipe: Recipe, stages: Stages, partition: int, point: ResumePoint, skips: Collection[int] = ()
    ) -> Self:
        """Return the chain from ``point`` on, which must be between two documents.

        Raises:
            ValueError: it is in the middle of one, whose tokens are not known here.

        """
        if point.cursor.taken:
            raise ValueError(f"the point is in the middle of the document at offset {point.cursor.next_offset}")
        reference = cls(recipe, stages, partition, point.cursor.next_offset, skips, point.totals.copy())
        reference._number, reference._chain = point.cursor.block, point.chain
        item = _ITEM[recipe.dtype]
        if reference._fit is not None:
            reference._fit.blocks = reopened(point, item)
            return reference
        reference._tokens = list(unpack(f"<{len(point.open_tokens) // calcsize(item)}{item}", point.open_tokens))
        reference._pieces = _pieces_of(point.open_entry)
        return reference

    @property
    def open_tokens(self) -> int:
        """Tokens that wait in the open block after all records read so far."""
        return len(self._tokens) if self._fit is None else sum(len(b.tokens) for b in self._fit.blocks)

    @property
    def references(self) -> bytes:
        return b"" if self._fit is None else self._fit.references()

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """These tokens and their entry; both empty where no block is open."""
        if self._fit is not None:
            opened = [(self._packed_tokens(b.tokens), self._entry(b.pieces)) for b in self._fit.blocks]
            return b"".join(t for t, _ in opened), b"".join(e for _, e in opened)
        return (self._packed_tokens(), self._entry()) if self._tokens else (b"", b"")

    @property
    def chain(self) -> bytes:
        """The hash after the last full block."""
        return self._chain

    def blocks(self, records: Iterable[SourceRecord]) -> Iterator[ReferenceBlock]:
        """Yield the blocks that the records fill, in order; call again with later records to continue."""
        for record in records:
            if record.offset >= self.start_offset:
                passed: list[Document] = []
                outcome = self.stages.outcome(record, self.skips, passed)
                yield from self._add(record, outcome, passed)

    def _add(self, record: SourceRecord, outcome: Outcome, passed: list[Document]) -> Iterator[ReferenceBlock]:
        kind = outcome.kind_in(self.recipe.split)
        ids: list[int] = []
        reason = outcome.reason
        if kind is Kind.KEPT and outcome.document is not None:
            batch = self.stages.engine.encode([outcome.document.text])
            ids = batch.ids.tolist()
            if batch.failed:
                kind, reason = Kind.DEAD_LETTERED, batch.failed[0].reason
            elif not ids:
                kind, reason = Kind.FILTERED, NO_TOKENS
        if kind is Kind.KEPT and outcome.document is not None:
            yield from self._add_document(record, passed, [*self.recipe.begin_of_document, *ids, *self.recipe.after])
            return
        if kind is Kind.FLUSH and self._fit is not None:
            yield from self._fit_flush(record)
            return
        self._count(kind, reason)
        if kind is not Kind.OTHER_SPLIT:
            self._count_steps(outcome, passed)
        if kind is Kind.FLUSH and self._tokens:
            missing = self.recipe.block_tokens - len(self._tokens)
            self._pieces.append((len(self._tokens), record.offset, -1, b""))
            self._tokens += [self.recipe.padding_id] * missing
            yield self._close(Cursor(record.offset + 1, 0, self._number + 1, *_remembered(record)))

    def _add_document(
        self, record: SourceRecord, passed: list[Document], tokens: list[int]
    ) -> Iterator[ReferenceBlock]:
        document = passed[-1]
        meta = self._meta(document)
        if self._fit is not None:
            yield from self._fit_document(record, passed, tokens, meta)
            return
        last = len(tokens) - 1
        for position, token in enumerate(tokens):
            if not self._tokens or position == 0:
                self._pieces.append((len(self._tokens), record.offset, position, meta))
            self._tokens.append(token)
            if position == last:
                self._count(Kind.KEPT, "")
                self._count_steps(Outcome(record, Kind.KEPT), passed)
                self._count_kept(document, len(tokens))
                self.totals.tokens += len(tokens)
                self.totals.value_bytes += len(record.value or b"")
            if len(self._tokens) == self.recipe.block_tokens:
                place = (record.offset + 1, 0) if position == last else (record.offset, position + 1)
                yield self._close(Cursor(*place, self._number + 1, *_remembered(record)))

    def _fit_document(
        self, record: SourceRecord, passed: list[Document], tokens: list[int], meta: bytes
    ) -> Iterator[ReferenceBlock]:
        assert self._fit is not None
        counted = False
        for left in self._fit.add(record.offset, tokens, meta, _remembered(record)[1]):
            if left.finished:
                self._count_whole(record, passed, len(tokens))
                counted = True
            yield self._leave(record, left)
        if not counted:
            self._count_whole(record, passed, len(tokens))

    def _count_whole(self, record, passed, tokens):
        self._count(Kind.KEPT, "")
        self._count_steps(Outcome(record, Kind.KEPT), passed)
        self._count_kept(passed[-1], tokens)
        self.totals.tokens += tokens
        self.totals.value_bytes += len(record.value or b"")

    def _fit_flush(self, record: SourceRecord) -> Iterator[ReferenceBlock]:
        assert self._fit is not None
        counted = False
        for left in self._fit.flush(record.offset):
            if left.finished:
                self._count(Kind.FLUSH, "")
                counted = True
            yield self._leave(record, left)
        if not counted:
            self._count(Kind.FLUSH, "")

    def _leave(self, record: SourceRecord, left: LeavingBlock) -> ReferenceBlock:
        assert self._fit is not None
        self.totals.packing.update(left.figures)
        self._tokens, self._pieces = left.tokens, left.pieces
        cursor = Cursor(record.offset + left.finished, left.taken, self._number + 1, *_remembered(record))
        return self._close(cursor, self._fit.references())

    def _close(self, cursor: Cursor, references: bytes = b"") -> ReferenceBlock:
        tokens, entry = self._packed_tokens(), self._entry()
        self._chain = xxhash.xxh3_128_digest(self._chain + tokens + entry)
        block = ReferenceBlock(self._number, tokens, entry, self._chain, cursor, self.totals.copy(), references)
        self._number, self._tokens, self._pieces = self._number + 1, [], []
        return block

    def _packed_tokens(self, tokens=None) -> bytes:
        tokens = self._tokens if tokens is None else tokens
        return pack(f"<{len(tokens)}{_ITEM[self.recipe.dtype]}", *tokens)

    def _entry(self, pieces=None) -> bytes:
        pieces = self._pieces if pieces is None else pieces
        entry = pack("<II", len(pieces), sum(len(meta) for *_, meta in pieces))
        for start, offset, position, meta in pieces:
            entry += pack("<IIqq", start, len(meta), offset, position)
        return entry + b"".join(meta for *_, meta in pieces)

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


def _pieces_of(entry: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return start, offset, position and meta of each piece of an entry; none of an empty one."""
    if not entry:
        return []
    head, row = calcsize("<II"), calcsize("<IIqq")
    count, _ = unpack_from("<II", entry)
    at = head + count * row
    pieces = []
    for start, size, offset, position in iter_unpack("<IIqq", entry[head:at]):
        pieces.append((start, offset, position, entry[at : at + size]))
        at += size
    return pieces
