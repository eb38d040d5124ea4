"""The engine and the stages of a verification: a batch of documents is tokenized before the reference asks for each.

The reference encodes one text at a time, and libraries are several times faster with hundreds. An engine's ids depend
on the text and the tokenizer alone, never on what else is in the batch (`tokenmill.stages.engines.Engine`), so that
asking earlier changes no answer; a text that was not asked for ahead is encoded then.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tokenmill.milling.outcomes import Kind, Stages
from tokenmill.records import SourceRecord
from tokenmill.stages.engines import Engine, TokenBatch


class Ahead:
    """An engine that remembers the ids of one batch of texts."""

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``, which must be the one that defines the stream's ids."""
        self._engine = engine
        self._batch: TokenBatch | None = None
        self._numbers: dict[str, int] = {}

    @property
    def kind(self) -> str:
        """The engine's."""
        return self._engine.kind

    @property
    def vocabulary_size(self) -> int:
        """The engine's."""
        return self._engine.vocabulary_size

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

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people."""
        return self._engine.decode(ids)

    def token_id(self, token: str) -> int | None:
        """Return a token's id."""
        return self._engine.token_id(token)


class AheadStages:
    """The stages that the reference is given, and what is asked of them ahead of it."""

    def __init__(self, stages: Stages, split: str, skips: Collection[int]) -> None:
        """Look ahead for the chain of ``split``."""
        self._engine = Ahead(stages.engine)
        self.stages = replace(stages, engine=self._engine)
        self._split = split
        self._skips = skips

    def prepare(self, records: Sequence[SourceRecord]) -> list[int]:
        """Encode the documents that the chain keeps; return the offsets of the records that are dead-lettered.

        A record is dead-lettered whether or not a split owns it.
        """
        outcomes = [self.stages.outcome(record, self._skips) for record in records]
        self._engine.prepare(
            [o.document.text for o in outcomes if o.document is not None and o.kind_in(self._split) is Kind.KEPT]
        )
        return [outcome.record.offset for outcome in outcomes if outcome.kind is Kind.DEAD_LETTERED]
