"""The right answer: one chain computed record by record, document by document, token by token.

Slow and plain on purpose. It shares with the fast path the stages that turn one record into one outcome, the engine,
and nothing else: packings, pieces, chain hash, cursor and totals are written again, from the format's description.
Tests and `tokenmill verify` compare its blocks with those on Kafka and on disk byte for byte.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from struct import calcsize, iter_unpack, pack, unpack, unpack_from
from typing import Final, NamedTuple, Self
from zlib import crc32

import xxhash

from tokenmill.documents import Document, SourceRecord
from tokenmill.packings import Fit, packing_of
from tokenmill.reading import ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import Cursor
from tokenmill.wire.totals import LANGUAGE, Amount, Totals

from .outcomes import NO_TOKENS, Kind, Outcome, Stages

ITEM: Final = {"uint8": "B", "uint16": "H", "uint32": "I"}
"""The dtypes, as `struct` names them."""
Pieces = list[tuple[int, int, int, bytes]]
"""Start, offset, position and meta of each piece of a block."""


class LeavingBlock(NamedTuple):
    """A block that leaves, and where its document is then."""

    tokens: list[int]
    pieces: Pieces
    taken: int
    """Tokens of the document that is being placed which are in blocks that left; 0 where all of it is placed."""
    finished: bool
    """Whether all of that document is placed, or all blocks are closed that a flush closes."""
    figures: Mapping[str, int]
    """What the totals count of the block (`Totals.packing`)."""


@dataclass(slots=True)
class OpenBlock:
    """A block that waits for more tokens."""

    tokens: list[int] = field(default_factory=list)
    pieces: Pieces = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    """Of the record of each piece, in a packing that refers to records."""


class ReferencePacking(ABC):
    """What the reference asks of a packing; of one without open blocks, unless it says otherwise."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.blocks: list[OpenBlock] = []
        """The open ones, in their order."""

    def dropped(self, tokens: Sequence[int]) -> str:  # noqa: ARG002 - a packing that drops some looks at them
        """Return why a document of these tokens is filtered out; an empty text if it is not."""
        return ""

    def given(self, tokens: Sequence[int]) -> int:
        """Return how many tokens a kept document of these tokens gives to blocks, padding not counted."""
        return len(tokens)

    @abstractmethod
    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:
        """Place a document whose record has this CRC; yield the blocks that leave, each before it goes on."""

    def flush(self, offset: int) -> Iterator[LeavingBlock]:  # noqa: ARG002 - a packing with open blocks closes them
        """Do what a flush record at ``offset`` asks for; yield the blocks that leave."""
        return iter(())

    def reopen(self, point: ResumePoint) -> None:  # noqa: B027 - there may be nothing to open
        """Begin with the open blocks of a point."""

    def references(self) -> bytes:
        """Return the open blocks as references, in a packing that has them in every message; else nothing."""
        return b""


class ConcatReference(ReferencePacking):
    """All documents one after the other, cut where a block ends."""

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:  # noqa: ARG002
        """Append the tokens, one after the other."""
        last = len(tokens) - 1
        for position, token in enumerate(tokens):
            if not self.blocks:
                self.blocks.append(OpenBlock())
            (block,) = self.blocks
            if not block.tokens or position == 0:
                block.pieces.append((len(block.tokens), offset, position, meta))
            block.tokens.append(token)
            if len(block.tokens) == self._recipe.block_tokens:
                self.blocks.clear()
                taken = 0 if position == last else position + 1
                yield LeavingBlock(block.tokens, block.pieces, taken, position == last, {})

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Fill the open block, if there is one."""
        while self.blocks:
            block = self.blocks.pop()
            missing = self._recipe.block_tokens - len(block.tokens)
            block.pieces.append((len(block.tokens), offset, -1, b""))
            yield LeavingBlock(block.tokens + [self._recipe.padding_id] * missing, block.pieces, 0, True, {})

    def reopen(self, point: ResumePoint) -> None:
        """Begin with the one that a carry holds."""
        item = ITEM[self._recipe.dtype]
        tokens = unpack(f"<{len(point.open_tokens) // calcsize(item)}{item}", point.open_tokens)
        if tokens:
            self.blocks = [OpenBlock(list(tokens), pieces_of(point.open_entry))]


class FitReference(ReferencePacking):
    """Whole documents, each in the open block with the least sufficient room."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        parameters = packing_of(recipe)
        if not isinstance(parameters, Fit):
            raise TypeError(recipe.packing)
        self._size, self._padding, self._item = recipe.block_tokens, recipe.padding_id, ITEM[recipe.dtype]
        self._most_open, self._max_age = parameters.open_blocks, parameters.max_age_offsets

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:
        """Give whole blocks, then place the rest; yield the blocks that leave."""
        yield from self._close_old(offset)
        taken, end = 0, len(tokens)
        while end - taken >= self._size:
            begin, taken = taken, taken + self._size
            figures = {"padding": 0, "joined": 0, "cut": int(begin == 0 and taken < end)}
            finished = taken == end
            whole, pieces = list(tokens[begin:taken]), [(0, offset, begin, meta)]
            yield LeavingBlock(whole, pieces, 0 if finished else taken, finished, figures)
        if taken == end:
            return
        fitting = [block for block in self.blocks if self._room(block) >= end - taken]
        if not fitting and len(self.blocks) == self._most_open:
            yield self._close(min(self.blocks, key=self._room), offset, taken, finished=False)
        if not fitting:
            self.blocks.append(OpenBlock())
            fitting = self.blocks[-1:]
        block = min(fitting, key=self._room)
        block.pieces.append((len(block.tokens), offset, taken, meta))
        block.crcs.append(crc)
        block.tokens += tokens[taken:]
        if not self._room(block):
            self.blocks.remove(block)
            yield LeavingBlock(block.tokens, block.pieces, 0, True, self._figures(block, 0))

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Close all blocks, the oldest first."""
        for closed in self._close_old(offset):
            yield closed._replace(finished=not self.blocks)
        while self.blocks:
            yield self._close(self.blocks[0], offset, 0, finished=len(self.blocks) == 1)

    def reopen(self, point: ResumePoint) -> None:
        """Begin with the blocks that a carry holds by value."""
        self.blocks = []
        if not point.references:
            return
        (number,) = unpack_from("<I", point.references)
        counts = unpack_from(f"<{number}I", point.references, 4)
        references = iter_unpack("<qIII", point.references[4 + 4 * number :])
        count = len(point.open_tokens) // calcsize(self._item)
        tokens, entries = list(unpack(f"<{count}{self._item}", point.open_tokens)), point.open_entry
        for pieces in counts:
            own = list(islice(references, pieces))
            length = sum(size for _, _, size, _ in own)
            rows, metas = unpack_from("<II", entries)
            end = 8 + 24 * rows + metas
            self.blocks.append(OpenBlock(tokens[:length], pieces_of(entries[:end]), [crc for *_, crc in own]))
            tokens, entries = tokens[length:], entries[end:]

    def references(self) -> bytes:
        """Return the open blocks as references."""
        if not self.blocks:
            return b""
        data = pack("<I", len(self.blocks)) + b"".join(pack("<I", len(block.pieces)) for block in self.blocks)
        for block in self.blocks:
            ends = [*(start for start, *_ in block.pieces[1:]), len(block.tokens)]
            for (start, offset, position, _), end, crc in zip(block.pieces, ends, block.crcs, strict=True):
                data += pack("<qIII", offset, position, end - start, crc)
        return data

    def _close_old(self, offset: int) -> Iterator[LeavingBlock]:
        """Close the blocks whose oldest piece is too far behind."""
        while self.blocks and self.blocks[0].pieces[0][1] + self._max_age < offset:
            too_old_from = self.blocks[0].pieces[0][1] + self._max_age + 1
            yield self._close(self.blocks[0], too_old_from, 0, finished=False)

    def _close(self, block: OpenBlock, offset: int, taken: int, *, finished: bool) -> LeavingBlock:
        self.blocks.remove(block)
        room = self._room(block)
        pieces = [*block.pieces, (len(block.tokens), offset, -1, b"")]
        figures = self._figures(block, room)
        return LeavingBlock(block.tokens + [self._padding] * room, pieces, taken, finished, figures)

    def _room(self, block: OpenBlock) -> int:
        return self._size - len(block.tokens)

    @staticmethod
    def _figures(block: OpenBlock, padding: int) -> dict[str, int]:
        return {"padding": padding, "joined": int(len(block.pieces) > 1), "cut": 0}


class PartsReference(ReferencePacking):
    """A document in parts, each in a block of its own."""

    _step: int
    """How far a part begins behind the one before, in the ids that are divided."""

    @abstractmethod
    def _divided(self, tokens: Sequence[int]) -> tuple[list[list[int]], int]:
        """Return the parts that a document of these tokens gives, and how many of its ids are divided."""

    def given(self, tokens: Sequence[int]) -> int:
        """Return the ids of all parts."""
        return sum(map(len, self._divided(tokens)[0]))

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:  # noqa: ARG002
        """Yield the blocks of a document, one for each part, which is a piece of it."""
        size = self._recipe.block_tokens
        parts, divided = self._divided(tokens)
        left_out = max(0, divided - len(parts) * self._step)
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            missing = size - len(part)
            pieces = [(0, offset, number * self._step, meta)]
            if missing:
                pieces.append((len(part), offset, -1, b""))
            figures = {
                "padding": missing,
                "cut": int(number == 0 and not is_last),
                "shortened": int(is_last and left_out > 0),
                "left_out": left_out if is_last else 0,
            }
            padded = part + [self._recipe.padding_id] * missing
            yield LeavingBlock(padded, pieces, 0 if is_last else (number + 1) * size, is_last, figures)


class RowsReference(PartsReference):
    """One document a row, or several rows, each between the ids before and after a text."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._long = recipe.packing_parameters.get("long", "truncate")
        self._short = recipe.packing_parameters.get("short", "pad")
        self._step = recipe.block_tokens - len(recipe.begin_of_document) - len(recipe.after)

    def dropped(self, tokens: Sequence[int]) -> str:
        """Return why no row comes of the document, if none does."""
        text = len(self._text(tokens))
        if self._long == "drop" and text > self._step:
            return "too_long"
        return "too_short" if self._short == "drop" and text < self._step else ""

    def _text(self, tokens: Sequence[int]) -> Sequence[int]:
        return tokens[len(self._recipe.begin_of_document) : len(tokens) - len(self._recipe.after)]

    def _divided(self, tokens: Sequence[int]) -> tuple[list[list[int]], int]:
        text = self._text(tokens)
        rows, divided = [], len(text)
        while text:
            part, text = text[: self._step], text[self._step :]
            if len(part) == self._step or self._short == "pad":
                rows.append([*self._recipe.begin_of_document, *part, *self._recipe.after])
            if self._long != "split":
                break
        return rows, divided


class ChunksReference(PartsReference):
    """A document in chunks, each with one id more, with which the next one begins."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._rest = recipe.packing_parameters.get("rest", "drop")
        self._step = recipe.block_tokens - 1

    def dropped(self, tokens: Sequence[int]) -> str:
        """Return why no chunk comes of the document, if none does."""
        return "" if self._divided(tokens)[0] else "too_short"

    def _divided(self, tokens: Sequence[int]) -> tuple[list[list[int]], int]:
        chunks, begin = [], 0
        while begin == 0 or begin + 1 < len(tokens):
            chunk = list(tokens[begin : begin + self._step + 1])
            if len(chunk) == self._step + 1 or self._rest == "pad":
                chunks.append(chunk)
            begin += self._step
        return chunks, len(tokens) - 1


REFERENCES: Final[Mapping[str, type[ReferencePacking]]] = {
    "concat": ConcatReference,
    "fit": FitReference,
    "rows": RowsReference,
    "chunks": ChunksReference,
}


def pieces_of(entry: bytes) -> Pieces:
    """Return start, offset, position and meta of each piece of an entry."""
    head, row = calcsize("<II"), calcsize("<IIqq")
    count, _ = unpack_from("<II", entry)
    at = head + count * row
    pieces = []
    for start, size, offset, position in iter_unpack("<IIqq", entry[head:at]):
        pieces.append((start, offset, position, entry[at : at + size]))
        at += size
    return pieces


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
        if kind is not Kind.KEPT:
            return
        given, document = self._packing.given(tokens), passed[-1]
        self.totals.tokens += given
        self.totals.value_bytes += len(outcome.record.value or b"")
        figures, labels = self.totals.figures, self.stages.counted_labels
        if labels:
            figures.token_lengths[given.bit_length() - 1] += 1
            figures.text_lengths[len(document.text.encode()).bit_length() - 1] += 1
        if LANGUAGE in labels:
            language = str(document.fields.get(LANGUAGE))
            figures.languages[language] = figures.languages.get(language, Amount()).plus(Amount(1, given))

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


def _remembered(record: SourceRecord) -> tuple[int, int, int]:
    return record.offset, crc32((record.key or b"") + (record.value or b"")), record.timestamp


def _entry(pieces: Pieces) -> bytes:
    entry = pack("<II", len(pieces), sum(len(meta) for *_, meta in pieces))
    for start, offset, position, meta in pieces:
        entry += pack("<IIqq", start, len(meta), offset, position)
    return entry + b"".join(meta for *_, meta in pieces)
