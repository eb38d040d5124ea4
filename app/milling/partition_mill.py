"""One raw partition: records go in, every chain's messages and the dead letters come out. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter
from typing import Final, Literal, NamedTuple

import numpy as np

from tokenmill.errors import EngineError, PanicError
from tokenmill.records import SourceRecord, index_at
from tokenmill.wire.message import Message

from .chain_mill import ChainMill
from .columns import ChainOutcomes, KeptDocuments, OutcomeColumns, RecordColumns
from .document_columns import divide
from .native_calls import NativeCode
from .outcomes import Kind, Outcome, Stages
from .packing.document_shapes import DETAILS, filtered_out
from .tokenizers import REFERENCE, TokenBatch, joined

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
        Whether feeds also list what is filtered out, ``list_rejected`` says.
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
        """Take consecutive records through the steps, so that what they are can be asked for before they are milled.

        Raises as `feed`.
        """
        fetch = RecordColumns.of(records)
        with _MILLING:
            parts = [fetch.part(low, high) for low, high in fetch.parts()]
            return Looked(fetch, [OutcomeColumns.sort(self._stages, part, self._skips, self._note) for part in parts])

    def feed(self, records: Sequence[SourceRecord], looked: "Looked | None" = None) -> Milled:
        """Mill consecutive records of the partition, in the order of their offsets.

        ``looked`` is what `look` returned for them, if it was asked and the partition wants all of them. Raises
        EngineError where the engines differ on a document; PanicError where native code panicked (not over a text: that
        is a dead letter), and the note names the record; and SourceError where a chain is in the middle of a document
        that is another one now.
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
        """Decode and tokenize records ``[low, high)`` of a fetch; ``columns`` are their outcomes, if they are known.

        Returns their dead letters, those that are filtered out (where these are listed), and what each split packs.

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
        """Count the time since the last stop for ``stage``."""
        now = perf_counter()
        self.seconds[stage] += now - self._then
        self._then = now
