"""One raw partition: records go in, every chain's messages and the dead letters come out. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.engines import REFERENCE, TokenBatch
from tokenmill.errors import EngineError
from tokenmill.message import Message
from tokenmill.milling import ChainMill
from tokenmill.outcomes import Kind, Outcome, Stages
from tokenmill.records import Record

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
    seconds: Seconds


class PartitionMill:
    """The chains of one raw partition, milled together: each record is decoded and tokenized once."""

    def __init__(self, stages: Stages, chains: Sequence[ChainMill], skips: AbstractSet[int] = frozenset()) -> None:
        """Mill for ``chains``, one a split; ``skips`` are offsets that a person put on the skip list."""
        self.chains = {chain.recipe.split: chain for chain in chains}
        self._stages = stages
        self._skips = skips

    @property
    def next_offset(self) -> int:
        """The lowest offset that a chain still wants; feed from here."""
        return min(chain.next_offset for chain in self.chains.values())

    def feed(self, records: Sequence[Record]) -> Milled:
        """Mill consecutive records of the partition, in the order of their offsets."""
        started = perf_counter()
        first = self.next_offset
        outcomes = [self._stages.outcome(record, self._skips) for record in records if record.offset >= first]
        wanted = self._wanted(outcomes)
        decoded = perf_counter()
        tokens: list[npt.NDArray[np.integer] | None] = [None] * len(outcomes)
        total = 0
        for batch in _batches(outcomes, wanted):
            encoded = self._encode([outcomes[i] for i in batch])
            bounds = encoded.offsets.tolist()
            total += bounds[-1]
            for n, i in enumerate(batch):
                tokens[i] = encoded.ids[bounds[n] : bounds[n + 1]]
        tokenized = perf_counter()
        messages = {split: chain.feed(outcomes, tokens) for split, chain in self.chains.items()}
        dead = [outcome for outcome in outcomes if outcome.kind is Kind.DEAD_LETTERED]
        seconds = Seconds(decoded - started, tokenized - decoded, perf_counter() - tokenized)
        return Milled(dead, messages, len(wanted), total, seconds)

    def _encode(self, outcomes: Sequence[Outcome]) -> TokenBatch:
        try:
            return self._stages.engine.encode([_text(outcome) for outcome in outcomes])
        except EngineError as error:
            first, last, kind = outcomes[0].record.offset, outcomes[-1].record.offset, self._stages.engine.kind
            raise EngineError(
                f"in the records at offsets {first} to {last}, {error}: blocks made before may be wrong, too. Run "
                "`tokenmill verify`; if it finds no difference, go on with engine = "
                f'"{REFERENCE}", else begin a new stream with stream_suffix; and tell the makers of {kind}'
            ) from error

    def _wanted(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Return the indices of documents whose tokens a chain still needs: another may lag behind and be fed alone."""
        nexts: dict[str | None, int] = {split: chain.next_offset for split, chain in self.chains.items()}
        return [
            i
            for i, outcome in enumerate(outcomes)
            if outcome.kind is Kind.KEPT and outcome.split in nexts and outcome.record.offset >= nexts[outcome.split]
        ]


def _text(outcome: Outcome) -> str:
    return outcome.document.text if outcome.document is not None else ""


def _batches(outcomes: Sequence[Outcome], wanted: Sequence[int]) -> Iterator[list[int]]:
    """Divide the indices of wanted documents into batches for the engine."""
    batch: list[int] = []
    characters = 0
    for index in wanted:
        size = len(_text(outcomes[index]))
        if batch and (len(batch) == BATCH_DOCUMENTS or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(index)
        characters += size
    if batch:
        yield batch
