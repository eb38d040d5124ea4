"""What a process is given: one raw partition, and all chains that are made of it in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenmill.wire.genesis import Genesis
from tokenmill.wire.ignoring import IgnoreList

from ...settings import Settings
from .marks import ChainMarks
from .verified import Verified


@dataclass(frozen=True, slots=True)
class ChainTask:
    """One chain."""

    genesis: Genesis
    tokens_topic: str
    marks: ChainMarks
    ignored: IgnoreList
    """Messages of the token topic that its readers pass over."""
    since: Verified | None = None
    """Where an earlier verification ended; None: begin where the chain does."""
    ends: Path | None = None
    """Where the eras end that were not verified before (`era_ends`); None: there are none."""

    @property
    def start(self) -> int:
        """The source offset from which the chain is recomputed."""
        if self.since is not None:
            return self.since.carry.cursor.next_offset
        return self.genesis.start(self.marks.partition)

    @property
    def is_recomputed(self) -> bool:
        """Whether the raw topic still reaches the start; where not, topic and store are held against each other."""
        return self.marks.raw[0] <= self.start


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """One raw partition: its records are read, decoded and tokenized once for all its chains."""

    settings: Settings
    tokenizer: bytes | None
    skips: frozenset[int]
    chains: Sequence[ChainTask]
    store: Path | None
    sample: "Sample"

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.chains[0].marks.partition

    @property
    def raw_topic(self) -> str:
        """The raw topic's name."""
        return self.chains[0].genesis.recipe.raw_topic

    @property
    def stages_key(self) -> bytes:
        """What decides the stages: equal for all splits of a raw topic."""
        return stages_key(self.chains[0].genesis)

    @property
    def span(self) -> tuple[int, int]:
        """The source offsets that are read; empty where no chain is recomputed."""
        starts = [chain.start for chain in self.chains if chain.is_recomputed]
        first, end = self.chains[0].marks.raw
        return (max(first, min(starts)), end) if starts else (end, end)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the reference recomputes beside the fast way."""

    seed: int
    """Decides the places; those of two verifications with one seed are the same."""
    everything: bool = False


def stages_key(genesis: Genesis) -> bytes:
    """Return what chains have in common that one pass over their records can serve."""
    return replace(genesis.recipe, split="").fingerprint
