"""What a verification says: per chain what was compared, and the first difference of each side."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from tokenmill.wire.totals import Totals

from .verify_bounds import VerifiedChain, VerifiedEras

Side = Literal["topic", "store", "dead letters", "reference", "control topic", "signatures", "verdicts"]
Kind = Literal["different", "repeated", "skipped", "missing", "extra", "account", "foreign", "damaged"]
"""``different`` ids or boundaries; a document that came twice (``repeated``) or was left out (``skipped``); blocks that
are ``missing`` before later ones; ``extra`` ones that the source does not make; an ``account`` (cursor or totals) that
is wrong; a ``foreign`` or ``damaged`` message or file."""


@dataclass(frozen=True, slots=True)
class VerifyDifference:
    """The first place where a side of a chain is not what it must be."""

    side: Side
    kind: Kind
    stream: str
    """Of signatures and verdicts: the raw topic."""
    partition: int | None
    """None: of an era as a whole."""
    text: str
    """What is wrong, for people."""
    block: int | None = None
    offset: int | None = None
    """Offset in the raw partition of the document that holds the difference."""
    document: str | int | None = None
    """Its id, where it has one."""
    era: int | None = None

    def __str__(self) -> str:
        """Return one line."""
        place = [self.stream if self.partition is None else f"{self.stream} partition {self.partition}"]
        place += [f"era {self.era}"] if self.era is not None else []
        place += [f"block {self.block}"] if self.block is not None else []
        place += [f"source offset {self.offset}"] if self.offset is not None else []
        place += [f"document {self.document!r}"] if self.document is not None else []
        return f"{self.side}: {', '.join(place)}: {self.text}"


@dataclass(slots=True)
class ChainResult:
    """What was found of one chain, up to offsets that were fixed before anything was read."""

    stream: str
    partition: int
    raw_topic: str
    raw_range: tuple[int, int]
    """Offsets of the raw partition at the mark: the first that is retained, and the end."""
    token_range: tuple[int, int]
    """The same of the token partition."""
    reference: bool = True
    """Whether the chain was recomputed; where the raw topic no longer reaches its start, topic and store are compared
    with each other."""
    totals: Totals = field(default_factory=Totals)
    """What became of all records below the mark (without a reference: as the last message says)."""
    reference_blocks: int = 0
    """Full blocks that the records below the mark make."""
    open_tokens: int = 0
    """Tokens of theirs that wait for the next block to be full."""
    topic_blocks: tuple[int, int] = (0, 0)
    """Number of the first block that the token topic retains, and of the one after the last."""
    store_blocks: tuple[int, int] | None = None
    """The same of the store; None where none was asked for."""
    topic_equal: int = 0
    """Blocks of the topic that are equal byte for byte, with their entries, hashes, cursors and totals."""
    store_equal: int = 0
    """Blocks of the store that are equal byte for byte, with their entries, hashes and checksums."""
    messages: int = 0
    """Messages of the token topic that were read, carries included."""
    carries: int = 0
    """Messages of these that hold no block."""
    carries_equal: int = 0
    """Carries whose cursor, totals, chain hash and open block are right."""
    sampled: list[tuple[int, int]] = field(default_factory=list)
    """Runs of source offsets, ends excluded, that the reference computed too, record by record."""
    sampled_blocks: int = 0
    """Blocks that became full in these runs, all of them as the reference has them."""
    dropped: int = 0
    """Blocks that the topic holds more than once; every reader drops all but the first."""
    lost: int = 0
    """Blocks that the topic lacks although it holds later ones."""
    verified: VerifiedChain | None = None
    """Up to where topic and store hold all blocks, each of them right: there the next verification may begin."""
    since: int = 0
    """The source offset from which this verification recomputed the chain."""
    unjudged: int = 0
    """Source offsets from the first document on of which it was not said whether it is a duplicate: `raw_range` ends
    before them."""
    dead_letters: "array[int]" = field(default_factory=lambda: array("q"))
    """Offsets of the records that must be dead-lettered, from `since` on, below the last published cursor."""
    era_ends: int = 0
    """Ends of eras that name the chain hash which the blocks have there."""
    notes: list[str] = field(default_factory=list)
    """What could not be verified, and why."""
    differences: list[VerifyDifference] = field(default_factory=list)
    """The first of the topic, the first of the store, and the first era that names other blocks, if any."""

    @property
    def behind(self) -> int:
        """Full blocks of the source that the token topic did not hold at the mark: still to be milled, or lost."""
        return max(0, self.reference_blocks - self.topic_blocks[1]) if self.reference else 0

    @property
    def store_behind(self) -> int:
        """Blocks of the topic that the store did not hold at the mark."""
        return max(0, self.topic_blocks[1] - self.store_blocks[1]) if self.store_blocks else 0

    @property
    def complete(self) -> bool:
        """Whether the token topic holds every full block of the source, and the store as well."""
        return not self.unjudged and not self.behind and not self.store_behind and not self.differences

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        others = {"totals", "verified", "dead_letters", "differences", *(() if self.unjudged else ("unjudged",))}
        return {
            **{one.name: getattr(self, one.name) for one in fields(self) if one.name not in others},
            "behind": self.behind,
            "store_behind": self.store_behind,
            "complete": self.complete,
            "totals": self.totals.to_dict(),
            "dead_letters": len(self.dead_letters),
            "differences": [asdict(difference) for difference in self.differences],
        }


@dataclass(slots=True)
class EraResult:
    """What was found of the eras of a stream, up to an offset of its control topic that was fixed before."""

    stream: str
    since: int = 0
    """The era with which this verification began."""
    eras: int = 0
    """Eras on the control topic; those before `since` count as well."""
    blocks: int = 0
    """Blocks of those from `since` on."""
    ended: bool = False
    """Whether the last one is the end marker."""
    ignored: int = 0
    """Records that came as eras and are none: another writer was first, or the topic lost what they continue."""
    store_eras: int | None = None
    """Eras that the store held at the mark; None where none was asked for, or it lacks the stream."""
    store_equal: int = 0
    """Eras from `since` on whose line and row are what they must be, byte for byte."""
    verified: VerifiedEras | None = None
    """Up to where all is right, on the topic and in the store."""
    differences: list[VerifyDifference] = field(default_factory=list)
    """The first on the control topic, and the first in the store."""

    @property
    def store_behind(self) -> int:
        """Eras of the topic that the store did not hold at the mark."""
        return max(0, self.eras - self.store_eras) if self.store_eras is not None else 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        names = ("stream", "since", "eras", "blocks", "ended", "ignored", "store_eras", "store_equal", "store_behind")
        values = {name: getattr(self, name) for name in names}
        return {**values, "differences": [asdict(difference) for difference in self.differences]}


@dataclass(slots=True)
class DomainResult:
    """What was found of the duplicates in one domain, judged again in the order of its signatures."""

    domain: str
    documents: int = 0
    """Those that were judged again."""
    duplicates: Counter[str] = field(default_factory=Counter)
    """How many of these, by reason."""
    ranges: int = 0
    """Ranges of verdicts that were compared, the other ones included."""
    notes: list[str] = field(default_factory=list)
    differences: list[VerifyDifference] = field(default_factory=list)
    """The first of each raw partition."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        names = ("domain", "documents", "ranges")
        duplicates = {"duplicates": dict(sorted(self.duplicates.items()))}
        differences = [asdict(difference) for difference in self.differences]
        return {**{name: getattr(self, name) for name in names}, **duplicates, "differences": differences}


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What a whole verification says."""

    chains: Sequence[ChainResult]
    differences: Sequence[VerifyDifference]
    """All that is wrong: at most one of each side of a chain or of a stream's eras, and one of each partition's dead
    letters."""
    notes: Sequence[str]
    seconds: float
    seed: int = 0
    """Of the sample."""
    eras: Sequence[EraResult] = ()
    """Of each stream."""
    domains: Sequence[DomainResult] = ()
    """Of the streams' duplicates."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; blocks that are still to be milled, or to reach the store, are not."""
        return not self.differences

    @property
    def complete(self) -> bool:
        """Whether it is `ok`, and topic and store have every full block of the source, and every era."""
        behind = any(eras.store_behind for eras in self.eras)
        return self.ok and not behind and all(chain.complete for chain in self.chains)

    @property
    def blocks(self) -> int:
        """Blocks of the token topics that are equal."""
        return sum(chain.topic_equal for chain in self.chains)

    @property
    def store_blocks(self) -> int:
        """Blocks of the store that are equal."""
        return sum(chain.store_equal for chain in self.chains)

    @property
    def behind(self) -> int:
        """Full blocks of the source that are in no token topic (yet); 0 once the mill has come to the end."""
        return sum(chain.behind for chain in self.chains)

    @property
    def store_behind(self) -> int:
        """Blocks of the token topics that the store does not hold (yet)."""
        return sum(chain.store_behind for chain in self.chains)

    @property
    def lost(self) -> int:
        """Blocks that lack before later ones, and documents left out: at least, for only the first of each counts."""
        return sum(chain.lost for chain in self.chains) + self._count("skipped")

    @property
    def duplicated(self) -> int:
        """Documents that come twice in a chain: at least, for only the first difference of each side is looked for."""
        return self._count("repeated")

    @property
    def dropped(self) -> int:
        """Blocks that were written to the token topic once more after a takeover, which every reader drops."""
        return sum(chain.dropped for chain in self.chains)

    @property
    def totals(self) -> Totals:
        """Sum over all chains; the records of a raw topic count once for each of its streams."""
        return sum((chain.totals for chain in self.chains), Totals())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        names = ("ok", "complete", "blocks", "store_blocks", "behind", "lost", "duplicated", "dropped")
        return {
            **{name: getattr(self, name) for name in names},
            "different": len(self.differences),
            "seconds": round(self.seconds, 3),
            "sample_seed": self.seed,
            "totals": self.totals.to_dict(),
            "notes": list(self.notes),
            "differences": [asdict(difference) for difference in self.differences],
            "chains": [chain.to_dict() for chain in self.chains],
            "eras": [eras.to_dict() for eras in self.eras],
            **({"domains": [domain.to_dict() for domain in self.domains]} if self.domains else {}),
        }

    def _count(self, kind: Kind) -> int:
        return sum(difference.kind == kind for difference in self.differences)


class Advance(NamedTuple):
    """How much further one chain's check is."""

    records: int
    """Source records read."""
    blocks: int
    """Blocks made of them, over all chains of the partition."""
    value_bytes: int
    """Bytes of their values."""


class VerifyProgress(NamedTuple):
    """How far a verification is."""

    offsets: int
    """Source offsets read; those of a raw partition count once for each pass over it."""
    of_offsets: int
    """Source offsets to read in all."""
    blocks: int
    """Blocks made of those read."""
    value_bytes: int
    """Bytes of the values read."""
