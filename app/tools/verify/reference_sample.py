"""The reference's share of a verification: which records it computes too, and whether it comes to the same.

Libraries encode several times faster with hundreds of texts than one by one. As an engine's ids depend on the text and
the tokenizer alone (`app.milling.tokenizers.Engine`), a run's documents are encoded before the reference asks for each.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Final, cast

from tokenmill.documents import SourceRecord
from tokenmill.reading.continuing import ResumePoint, resume_point
from tokenmill.recipe import Recipe
from tokenmill.wire.message import Message

from ...milling.outcomes import Kind, Stages
from ...milling.partition_mill import ChainMill
from ...milling.reference import Reference, ReferenceBlock
from ...milling.tokenizers import Engine, TokenBatch
from .verify_result import BlockRun, ChainResult, VerifyDifference, first_difference


class BatchedEngine:
    """An engine that remembers the ids of one batch of texts."""

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``, which must be the one that defines the stream's ids."""
        self._engine = engine
        self._batch: TokenBatch | None = None
        self._numbers: dict[str, int] = {}

    def prepare(self, texts: Sequence[str]) -> None:
        """Encode these texts now, and forget those before."""
        self._numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self._batch = self._engine.encode(list(self._numbers))

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``."""
        if len(texts) == 1 and self._batch is not None and texts[0] in self._numbers:
            number = self._numbers[texts[0]]
            return self._batch.part(number, number + 1)
        return self._engine.encode(texts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@dataclass(frozen=True, slots=True)
class ReferenceSample:
    """What the reference recomputes in addition to the fast way."""

    seed: int
    """Decides the places; those of two verifications with one seed are the same."""
    everything: bool = False


EVERY_BYTES: Final = 64 * 1024 * 1024
"""One run in so many bytes of values: the reference takes some fifty times as long, and so a twentieth of the whole."""
RUN_BYTES: Final = 64 * 1024
"""A run is as many records as have so many bytes, and one at least."""
FIRST_BYTES: Final = 256 * 1024
"""The first run, at the very beginning, is longer: much of what can be wrong shows there."""


class Sampler:
    """Chooses the runs of one partition: at its beginning, and one anywhere in each `EVERY_BYTES` after that."""

    def __init__(self, sample: ReferenceSample, place: str) -> None:
        """Choose by the sample's seed; ``place`` names the partition, so that each has places of its own."""
        self._random = Random(f"{sample.seed}/{place}")  # noqa: S311 - not secret; the same places for the same seed
        self._everything = sample.everything
        self._passed = self._window = 0
        self._next: tuple[int, int] = (0, FIRST_BYTES)

    def choose(self, records: Sequence[SourceRecord], size: int) -> tuple[int, int]:
        """Return which of the next records, ``[low, high)``, are a run; ``size``: bytes of their values."""
        if self._everything:
            return 0, len(records)
        at, (start, stop) = self._passed, self._next
        self._passed += size + len(records)  # even a record without a value is passed
        if self._passed <= start:
            return 0, 0
        low = 0
        for record in records:
            if at >= start:
                break
            at += len(record.value or b"") + 1
            low += 1
        high = low
        while high < len(records) and at < stop:
            at += len(records[high].value or b"") + 1
            high += 1
        if self._passed >= stop:
            self._window = max(self._window + EVERY_BYTES, self._passed - self._passed % EVERY_BYTES)
            start = max(self._passed, self._window + self._random.randrange(EVERY_BYTES - RUN_BYTES))
            self._next = (start, start + RUN_BYTES)
        return low, high

    def parts(
        self, records: Sequence[SourceRecord], size: int, cuts: Iterable[int] = ()
    ) -> Iterator[tuple[Sequence[SourceRecord], bool]]:
        """Divide the next records around the run among them and before the offsets ``cuts``; say what is of the run."""
        low, high = self.choose(records, size)
        bounds = {0, low, high, len(records), *(sum(record.offset < cut for record in records) for cut in cuts)}
        for start, stop in pairwise(sorted(bounds)):
            yield records[start:stop], low <= start < high


class SampleCheck:
    """The reference at work on one run of records, for one chain."""

    def __init__(self, mill: ChainMill, result: ChainResult, stages: Stages, skips: Collection[int] = ()) -> None:
        """Begin where ``mill``, the fast way, is now; the engine of ``stages`` says which ids are right."""
        self._mill, self._result, self._skips = mill, result, skips
        carry = mill.carry(mill.next_offset, by_value=True)
        self._point: ResumePoint | None = resume_point(carry) if carry is not None else None
        self._engine = BatchedEngine(stages.engine)
        self._stages = replace(stages, engine=cast("Engine", self._engine))

    def compare(self, records: Sequence[SourceRecord], milled: Mapping[str, Sequence[Message]]) -> None:
        """Compute the records' blocks; note where the chain's in ``milled``, or what is left open, first differs."""
        result, recipe, point = self._result, self._mill.recipe, self._point
        differs = any(known.side == "reference" for known in result.differences)
        if point is None or differs or records[-1].offset < point.cursor.next_offset:
            return
        outcomes = [self._stages.outcome(record, self._skips) for record in records]
        kept = [o.document for o in outcomes if o.document is not None and o.kind_in(recipe.split) is Kind.KEPT]
        self._engine.prepare([document.text for document in kept])  # all at once
        reference = Reference.resumed(recipe, self._stages, result.partition, point, self._skips)
        blocks = list(reference.blocks(records))
        text = _first_difference(recipe, milled[recipe.split], blocks) or _state_difference(self._mill, reference)
        place = max(records[0].offset, point.cursor.next_offset), records[-1].offset + 1
        if text is not None:
            where = f"in the records at offsets {place[0]} to {place[1] - 1}, {text}"
            result.differences.append(
                VerifyDifference("reference", "different", result.stream, result.partition, where, offset=place[0])
            )
            return
        result.sampled_blocks += len(blocks)
        if result.sampled and result.sampled[-1][1] == place[0]:
            place = result.sampled.pop()[0], place[1]
        result.sampled.append(place)


def _first_difference(recipe: Recipe, messages: Sequence[Message], blocks: Sequence[ReferenceBlock]) -> str | None:
    at = 0
    for message in messages:
        own = blocks[at : at + message.count]
        at += message.count
        tokens, entries = b"".join([block.tokens for block in own]), [block.entry for block in own]
        wanted = BlockRun(message.first, tokens, entries, [block.chain for block in own])
        found = first_difference(wanted, BlockRun.of(message), recipe.token_dtype)
        if found is not None:
            return f"block {found[0]} is another than the reference's: {found[1].text}"
        if len(own) < message.count:
            return f"the reference makes {len(blocks)} blocks, and not those from {message.first + len(own)} on"
        if (message.after, message.cursor) != (own[-1].chain, own[-1].cursor):
            return f"after block {own[-1].number} the reference is at {own[-1].cursor}, not at {message.cursor}"
        if message.references != own[-1].references:
            return f"after block {own[-1].number} other blocks are open than in the reference"
        if message.totals.pack() != own[-1].totals.pack():
            return f"the reference counts {own[-1].totals.to_dict()}, not {message.totals.to_dict()}"
    return None if at == len(blocks) else f"the reference makes {len(blocks) - at} blocks more"


def _state_difference(mill: ChainMill, reference: Reference) -> str | None:
    carry = mill.carry(mill.next_offset, by_value=True)
    if carry is None:
        return None
    if (carry.open_tokens, carry.open_entry, carry.references) != (*reference.open_block, reference.references):
        return "the open block is another than the reference's"
    if carry.totals.pack() != reference.totals.pack():
        return f"the reference counts {reference.totals.to_dict()}, not {carry.totals.to_dict()}"
    return None if carry.after == reference.chain else "the chain hash is another than the reference's"
