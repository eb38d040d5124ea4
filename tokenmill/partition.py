"""One raw partition: records go in, every chain's messages and the dead letters come out. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Final, NamedTuple

from tokenmill.columns import Columns, Kept
from tokenmill.engines import REFERENCE, TokenBatch, joined
from tokenmill.errors import EngineError
from tokenmill.fates import Fates
from tokenmill.message import Message
from tokenmill.milling import ChainMill
from tokenmill.outcomes import Outcome, Stages
from tokenmill.records import SourceRecord

BATCH_DOCUMENTS: Final = 4096
"""Documents given to the engine at once: a call costs the fast engine 0.2 ms, so short documents want large batches."""
BATCH_CHARACTERS: Final = 4 * 1024 * 1024
"""Bound of one batch's text, so that memory does not follow the size of a fetch; one document may be larger."""


class Seconds(NamedTuple):
    """Where the time of one feed went; the blocks do not depend on it."""

    decode: float
    """Records became documents."""
    tokenize: float
    """Documents became ids."""
    pack: float
    """Ids became blocks and messages."""


@dataclass(frozen=True, slots=True)
class Milled:
    """What one feed of records gave."""

    dead_letters: Sequence[Outcome]
    """Must be acknowledged before any message below is sent."""
    messages: Mapping[str, Sequence[Message]]
    """New messages by split, in the order in which they must be sent."""
    documents: int
    """Documents that were tokenized."""
    tokens: int
    """Their tokens, without end-of-document ids."""
    value_bytes: int
    """Bytes of the values of all records that some chain still wanted."""
    seconds: Seconds


class PartitionMill:
    """The chains of one raw partition, milled together: each record is decoded and tokenized once."""

    def __init__(
        self,
        stages: Stages,
        chains: Sequence[ChainMill],
        skips: AbstractSet[int] = frozenset(),
        note: Callable[[int, int], None] | None = None,
    ) -> None:
        """Mill for ``chains``, one a split; ``skips`` are offsets that a person put on the skip list.

        ``note`` is told, before each part of the work, the first and the last offset of the records that are worked on.
        """
        self._note = note
        self.chains = {chain.recipe.split: chain for chain in chains}
        self._stages = stages
        self._skips = skips

    @property
    def next_offset(self) -> int:
        """The lowest offset that a chain still wants; feed from here."""
        return min(chain.next_offset for chain in self.chains.values())

    def feed(self, records: Sequence[SourceRecord]) -> Milled:
        """Mill consecutive records of the partition, in the order of their offsets.

        Raises:
            EngineError: the engines differ on one of the documents.
            SourceError: a chain stands in the middle of a document that is another one now.

        """
        started = perf_counter()
        first = bisect_left(records, self.next_offset, key=_offset)
        left = records[first:] if first else records
        self._tell(left)
        columns = Columns.sort(self._stages, left, self._skips, self._note)
        wanted = {
            split: columns.kept[split].since(columns.index(chain.next_offset)) for split, chain in self.chains.items()
        }
        decoded = perf_counter()
        encoded = self._encode(columns, wanted.values())
        tokenized = perf_counter()
        messages = {}
        low = 0
        for split, chain in self.chains.items():
            kept = wanted[split]
            high = low + len(kept.documents)
            messages[split] = chain.feed(Fates(chain.recipe, columns, kept, encoded.part(low, high)))
            low = high
        seconds = Seconds(decoded - started, tokenized - decoded, perf_counter() - tokenized)
        value_bytes = int(columns.sizes.sum())
        return Milled(columns.dead_letters, messages, len(encoded), len(encoded.ids), value_bytes, seconds)

    def _encode(self, columns: Columns, wanted: Iterable[Kept]) -> TokenBatch:
        """Encode all wanted documents, those of one split after those of the other."""
        texts = [text for kept in wanted for text, _, _ in kept.documents]
        batches = []
        for low, high in _batches(texts):
            self._tell(columns.records)
            try:
                batches.append(self._stages.engine.encode(texts[low:high]))
            except EngineError as error:
                raise self._explained(error, columns) from error
        return joined(batches)

    def _tell(self, records: Sequence[SourceRecord]) -> None:
        if self._note is not None and records:
            self._note(records[0].offset, records[-1].offset)

    def _explained(self, error: EngineError, columns: Columns) -> EngineError:
        first, last, kind = columns.offsets[0], columns.offsets[-1], self._stages.engine.kind
        return EngineError(
            f"in the records at offsets {first} to {last}, {error}: blocks made before may be wrong, too. Run "
            "`tokenmill verify --engine tokenizers`; if it finds no difference, go on with engine = "
            f'"{REFERENCE}", else begin a new stream with stream_suffix; and tell the makers of {kind}'
        )


def _offset(record: SourceRecord) -> int:
    return record.offset


def _batches(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Divide texts into batches for the engine."""
    characters_to = [0, *accumulate(map(len, texts))]
    low = 0
    while low < len(texts):
        room = bisect_right(characters_to, characters_to[low] + BATCH_CHARACTERS) - 1
        high = min(max(room, low + 1), low + BATCH_DOCUMENTS)
        yield low, min(high, len(texts))
        low = high
