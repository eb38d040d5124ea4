"""One raw partition: records go in, messages of each of its chains and dead letters come out. Pure.

`PartitionMill` takes records through all steps, `ChainMill` one chain's documents into messages, fast over whole
fetches. The answer is that of `milling.reference`, whatever the batches, on any host and however often it restarts.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Final, Literal, NamedTuple

import numpy as np

from tokenmill.documents import SourceRecord, index_at
from tokenmill.errors import EngineError, PanicError, SettingsError, SourceError
from tokenmill.packings import Concat, Fit, packing_of
from tokenmill.reading import ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import Cursor, record_crc, roll
from tokenmill.wire.message import HEADER_OVERHEAD, Message
from tokenmill.wire.pieces import NO_BLOCKS, split_references

from .columns import ChainOutcomes, KeptDocuments, OutcomeColumns, RecordColumns
from .document_columns import Integers, divide
from .foreign_code import NativeCode
from .outcomes import Kind, Outcome, Stages
from .packing.document_shapes import DETAILS, ChunksShape, RowsShape, SeparatePacking, document_shape, filtered_out
from .packing.fit_packing import FitPacking
from .packing.packed_blocks import ConcatPacking, PackedBlocks, Packing, TokenizedDocuments
from .tokenizers import REFERENCE, TokenBatch, joined


class ChainMill:
    """The state of one chain between two fetches: its open block, cursor, totals and hash."""

    def __init__(
        self, recipe: Recipe, point: ResumePoint, *, message_bytes: int, ends: Collection[int] = frozenset()
    ) -> None:
        """Continue at ``point``; cut messages at about ``message_bytes``, one block at least.

        A message that reaches a block of ``ends``, which is looked at again in every feed, ends before it: so who
        verifies a topic gets messages that can be compared with those on it.
        """
        self.recipe = recipe
        self._message_bytes = message_bytes
        self._ends = ends
        self.shape = document_shape(recipe)
        """What the packing makes of a document by its ids alone."""
        self._fingerprint = recipe.fingerprint
        self._block_bytes = recipe.block_bytes
        self._packing = open_packing(
            recipe, open_tokens=point.open_tokens, open_entry=point.open_entry, references=point.references
        )
        self._position = point.cursor
        self._chain = point.chain
        self.totals = point.totals.copy()
        """What became of the records so far, up to the next offset (not only up to the last block)."""
        self._last: SourceRecord | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the record that the chain wants next."""
        return self._position.next_offset

    @property
    def next_block(self) -> int:
        """The number of the block that is open or comes next."""
        return self._position.block

    @property
    def oldest_reference(self) -> int | None:
        """The lowest offset that an open block refers to; None where none does."""
        references = split_references(self._packing.references)
        return references.oldest if references.counts else None

    @property
    def open_tokens(self) -> int:
        """Tokens that wait in the open block."""
        return self._packing.open_tokens

    def feed(self, outcomes: ChainOutcomes) -> list[Message]:
        """Take the outcomes of consecutive records; return the messages of all blocks that became full.

        Records that the chain has passed are skipped, so the caller may begin anywhere at or below `next_offset`.
        Raises SourceError where the document that the chain is in the middle of is not there, or has another outcome
        now.
        """
        fetch = outcomes.fetch
        first = fetch.index(self.next_offset)
        flushes = outcomes.flushes(first)
        messages: list[Message] = []
        for low, high in _groups(first, len(fetch.records), flushes):
            if low in flushes:
                packed = self._packing.fill(fetch.records[low].offset)
                messages += self._messages(outcomes, low, high, packed, [low])
                continue
            documents, indices = outcomes.between(low, high)
            if self._position.within:
                documents = self._continued(documents)
            packed = self._packing.add(documents._replace(crc=partial(_crc, fetch.records, indices)))
            messages += self._messages(outcomes, low, high, packed, indices)
        return messages

    def carry(self, position: int, *, by_value: bool = False) -> Message | None:
        """Return a carry for the consumer's ``position``, past trailing gaps; None in the middle of a record.

        Of a packing with several open blocks it holds these by reference, and with ``by_value`` their tokens as well.
        """
        if self._position.within:
            return None
        references = self._packing.references
        tokens, entry = self._packing.open_block if by_value or not references else (b"", b"")
        cursor = self._cursor(max(position, self.next_offset), 0, self._last)
        return Message(
            fingerprint=self._fingerprint,
            first=self.next_block,
            cursor=cursor,
            before=self._chain,
            after=self._chain,
            totals=self.totals.copy(),
            tokens=b"",
            entries=[],
            open_tokens=tokens,
            open_entry=entry,
            references=references,
        )

    def _continued(self, documents: TokenizedDocuments) -> TokenizedDocuments:
        """Go on with the document whose beginning is in blocks, if it is there: two histories must not be joined."""
        offset, taken = self.next_offset, self._position.taken
        if not documents or documents.offsets[0] != offset or documents.bounds[1] - documents.bounds[0] <= taken:
            raise SourceError(
                f"the document at offset {offset} of {self.recipe.raw_topic} gave {taken} tokens to blocks before "
                f"block {self.next_block} of split {self.recipe.split}, and now gives fewer: it was rewritten, or "
                "put on the skip list too late; restore it, or begin a new stream with stream_suffix"
            )
        return documents._replace(taken=taken)

    def _messages(
        self, outcomes: ChainOutcomes, counted: int, end: int, packed: PackedBlocks, writers: Sequence[int] | Integers
    ) -> list[Message]:
        """Cut the blocks of records ``[counted, end)`` into messages, counting the records up to each message's cursor.

        ``writers`` are the indices of the records whose tokens or padding is in the blocks.
        """
        messages = []
        for low, high in self._cuts(packed):
            owner = int(writers[packed.documents[high - 1]])
            taken, finished = packed.taken[high - 1], packed.finished[high - 1]
            passed = owner + finished
            outcomes.count(self.totals, counted, passed)
            for name, numbers in packed.figures.items():
                self.totals.packing[name] += sum(numbers[low:high])
            counted = passed
            record = outcomes.fetch.records[owner]
            self._position = self._cursor(record.offset + finished, taken, record, self.next_block + high - low)
            messages.append(self._message(packed, low, high))
        outcomes.count(self.totals, counted, end)
        self._last = outcomes.fetch.records[end - 1]
        self._position = self._cursor(self._last.offset + 1, 0, self._last)
        return messages

    def _message(self, packed: PackedBlocks, low: int, high: int) -> Message:
        size = self.recipe.block_tokens
        tokens, entries = packed.tokens.between(low * size, high * size).tobytes(), packed.entries[low:high]
        before, chains = self._chain, roll(self._chain, tokens, entries)
        self._chain = chains[-1]
        return Message(
            fingerprint=self._fingerprint,
            first=self.next_block - (high - low),
            cursor=self._position,
            before=before,
            after=self._chain,
            totals=self.totals.copy(),
            tokens=tokens,
            entries=entries,
            references=packed.references(high),
            chains=chains,
        )

    def _cuts(self, packed: PackedBlocks) -> Iterator[tuple[int, int]]:
        """Divide the blocks into runs of about ``message_bytes``, and at the blocks where a message must end."""
        count, first = len(packed.entries), self.next_block
        bytes_to = np.cumsum([0, *map(len, packed.entries)]) + np.arange(count + 1) * self._block_bytes
        forced = sorted(end - first for end in self._ends)
        low, room = 0, self._message_bytes - HEADER_OVERHEAD
        while low < count:
            high = max(low + 1, int(np.searchsorted(bytes_to, bytes_to[low] + room, side="right")) - 1)
            at = bisect_right(forced, low)
            high = min((high, *forced[at : at + 1]))
            yield low, high
            low = high

    def _cursor(self, next_offset: int, taken: int, last: SourceRecord | None, block: int | None = None) -> Cursor:
        block = self._position.block if block is None else block
        if last is None:
            return replace(self._position, next_offset=next_offset, taken=taken, block=block)
        return Cursor(next_offset, taken, block, last.offset, record_crc(last.key, last.value), last.timestamp)


def _groups(first: int, end: int, flushes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide ``[first, end)`` so that a flush is alone in its range; nothing is divided where there is none."""
    for index in flushes:
        if index > first:
            yield first, index
        yield index, index + 1
        first = index + 1
    if first < end:
        yield first, end


def _crc(records: Sequence[SourceRecord], indices: Integers, at: int) -> int:
    record = records[int(indices[at])]
    return record_crc(record.key, record.value)


def open_packing(
    recipe: Recipe, *, open_tokens: bytes = b"", open_entry: bytes = b"", references: bytes = NO_BLOCKS
) -> Packing:
    """Return the recipe's packing, beginning with open blocks. Raises SettingsError where it is unknown here."""
    size, dtype, padding = recipe.block_tokens, recipe.token_dtype, recipe.padding_id
    packing, shape = packing_of(recipe), document_shape(recipe)
    if isinstance(packing, Concat):
        return ConcatPacking(size, dtype, padding, open_tokens=open_tokens, open_entry=open_entry)
    if isinstance(packing, Fit):
        return FitPacking(
            size,
            dtype,
            padding,
            open_blocks=packing.open_blocks,
            max_age_offsets=packing.max_age_offsets,
            references=references,
            open_tokens=open_tokens,
            open_entry=open_entry,
        )
    if isinstance(shape, RowsShape | ChunksShape):
        return SeparatePacking(size, dtype, padding, step=shape.step)
    raise SettingsError(f"packing {recipe.packing!r} is unknown here: use the version that made the stream")


BATCH_CHARACTERS: Final = 4 * 1024 * 1024
"""Bound of the text that the engine gets at once, which a user's function may have made longer; one document may be
larger."""
_MILLING: Final = NativeCode("native code that mills")


@dataclass(frozen=True, slots=True)
class Milled:
    """What one feed of records gave."""

    dead_letters: Sequence[Outcome]
    """Must be acknowledged before any message below is sent."""
    rejected: Sequence[Outcome]
    """What steps and tokenizer filtered out, where that was asked for; else none. Must be acknowledged before, too."""
    messages: Mapping[str, Sequence[Message]]
    """New messages by split, in the order in which they must be sent."""
    value_bytes: int
    """Bytes of the values of all records that some chain still wanted."""
    seconds: Mapping[str, float]
    """Where the time went, by stage: ``decode``, ``tokenize``, ``pack``; the blocks do not depend on it."""


class Looked(NamedTuple):
    """Records behind all steps."""

    fetch: RecordColumns
    columns: Sequence[OutcomeColumns]
    """Of each of the fetch's parts."""


class PartitionMill:
    """The chains of one raw partition, milled together: each record is decoded and tokenized once."""

    def __init__(
        self,
        stages: Stages,
        chains: Sequence[ChainMill],
        skips: AbstractSet[int] = frozenset(),
        note: Callable[[int, int], None] | None = None,
        *,
        list_rejected: bool = False,
    ) -> None:
        """Mill for ``chains``, one a split; ``skips`` are offsets that a person put on the skip list.

        ``note`` is called, before each part of the work, with the first and the last offset of the records in work.
        ``list_rejected`` says whether feeds also list what is filtered out.
        """
        self._list_rejected = list_rejected
        self._note = note
        self.chains = {chain.recipe.split: chain for chain in chains}
        self._stages = stages
        self._skips = skips

    @property
    def next_offset(self) -> int:
        """The lowest offset that a chain still wants; feed from here."""
        return min(chain.next_offset for chain in self.chains.values())

    def look(self, records: Sequence[SourceRecord]) -> "Looked":
        """Take consecutive records through the steps before they are milled, to ask what they are; raises as `feed`."""
        fetch = RecordColumns.of(records)
        with _MILLING:
            parts = [fetch.part(low, high) for low, high in fetch.parts()]
            return Looked(fetch, [OutcomeColumns.sort(self._stages, part, self._skips, self._note) for part in parts])

    def feed(self, records: Sequence[SourceRecord], looked: "Looked | None" = None) -> Milled:
        """Mill consecutive records of the partition, in the order of their offsets.

        ``looked`` is what `look` returned for them, if it was asked and the partition wants all of them. Raises
        EngineError where the engines differ on a document; PanicError where native code panicked (not over a text: that
        is a dead letter), and the note names the record; SourceError where a chain is in the middle of a document that
        is another one.
        """
        clock = _Clock()
        first = index_at(records, self.next_offset)
        fetch = looked.fetch if looked is not None else RecordColumns.of(records[first:] if first else records)
        known = iter(looked.columns if looked is not None else ())
        parts: dict[str, list[ChainOutcomes]] = {split: [] for split in self.chains}
        dead_letters: list[Outcome] = []
        rejected: list[Outcome] = []
        for low, high in fetch.parts():
            try:
                with _MILLING:
                    refused, filtered, found = self._mill_part(fetch, low, high, clock, next(known, None))
            except PanicError as error:
                raise self._narrowed(error, fetch, low, high) from error
            dead_letters += refused
            rejected += filtered
            for split, part in found.items():
                parts[split].append(part)
        with _MILLING:
            messages = {
                split: chain.feed(ChainOutcomes.concatenate(fetch, parts[split]))
                for split, chain in self.chains.items()
            }
        clock.stop("pack")
        return Milled(dead_letters, rejected, messages, int(fetch.sizes.sum()), clock.seconds)

    def _mill_part(
        self, fetch: RecordColumns, low: int, high: int, clock: "_Clock", columns: OutcomeColumns | None = None
    ) -> tuple[list[Outcome], list[Outcome], Mapping[str, ChainOutcomes]]:
        """Return the dead letters of records ``[low, high)``, what is filtered out, and what each split packs.

        Their documents are forgotten: memory that the next part can have is still in the processor's cache.
        """
        part = fetch.part(low, high)
        self._tell(part.records)
        if columns is None:
            columns = OutcomeColumns.sort(self._stages, part, self._skips, self._note)
        columns.filter_seen(self._stages)
        wanted = {
            split: columns.kept[split].since(part.index(chain.next_offset)) for split, chain in self.chains.items()
        }
        clock.stop("decode")
        encoded = self._encode(part.records, wanted.values())
        clock.stop("tokenize")
        dead_letters, outcomes, begin = columns.dead_letters, {}, 0
        rejected = columns.rejected if self._list_rejected else []
        for split, chain in self.chains.items():
            kept = wanted[split]
            end = begin + len(kept.documents)
            tokens = encoded.part(begin, end)
            for at, error in tokens.failed.items():
                dead_letters.append(self._stages.refused(part.records[kept.indices[at]], split, error))
            outcomes[split] = ChainOutcomes.of(chain.recipe, fetch, columns, kept, tokens, shape=chain.shape, first=low)
            begin = end
            if self._list_rejected:
                rejected += [
                    Outcome(part.records[kept.indices[at]], Kind.FILTERED, split, reason, DETAILS[reason])
                    for at, reason in filtered_out(chain.shape, tokens)
                ]
        rejected.sort(key=attrgetter("record.offset"))
        if encoded.failed:
            dead_letters.sort(key=attrgetter("record.offset"))
        clock.stop("pack")
        return dead_letters, rejected, outcomes

    def _encode(self, records: Sequence[SourceRecord], wanted: Iterable[KeptDocuments]) -> TokenBatch:
        """Encode all wanted documents of ``records``, those of one split after those of the other."""
        texts = [text for kept in wanted for text in kept.documents.texts]
        lengths, batches = np.fromiter(map(len, texts), np.int64, len(texts)), []
        for low, high in divide(lengths, items=len(texts), room=BATCH_CHARACTERS):
            self._tell(records)
            try:
                batches.append(self._stages.engine.encode(texts[low:high]))
            except PanicError:
                raise  # says nothing of blocks made before
            except EngineError as error:
                first, last, kind = records[0].offset, records[-1].offset, self._stages.engine.kind
                raise EngineError(
                    f"in the records at offsets {first} to {last}, {error}: blocks made before may be wrong, too. Run "
                    "`tokenmill verify --engine tokenizers`; if it finds no difference, go on with engine = "
                    f'"{REFERENCE}", else begin a new stream with stream_suffix; and tell the makers of {kind}'
                ) from error
        return joined(batches)

    def _narrowed(self, error: PanicError, fetch: RecordColumns, low: int, high: int) -> PanicError:
        """Find the record over which native code panics, if it does so again: it is noted, and named in the error."""
        for at in range(low, high):
            self._tell(fetch.records[at : at + 1])
            try:
                with _MILLING:
                    self._mill_part(fetch, at, at + 1, _Clock())
            except PanicError as again:
                return PanicError(f"over the record at offset {fetch.records[at].offset}, {again}")
        self._tell(fetch.records[low:high])
        return PanicError(f"in the records at offsets {fetch.offsets[low]} to {fetch.offsets[high - 1]}, {error}")

    def _tell(self, records: Sequence[SourceRecord]) -> None:
        if self._note is not None and records:
            self._note(records[0].offset, records[-1].offset)


class _Clock:
    """Divides the time since it was made."""

    def __init__(self) -> None:
        self.seconds = {"decode": 0.0, "tokenize": 0.0, "pack": 0.0}
        self._then = perf_counter()

    def stop(self, stage: Literal["decode", "tokenize", "pack"]) -> None:
        now = perf_counter()
        self.seconds[stage] += now - self._then
        self._then = now
