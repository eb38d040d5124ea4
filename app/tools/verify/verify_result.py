"""What a verification says: per chain what was compared, and where a side first differs; how blocks are. Pure."""

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from tokenmill.wire.message import Message
from tokenmill.wire.pieces import PADDING, Piece, decode_entry
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
    block: int | None = None
    offset: int | None = None
    """Offset in the raw partition of the document that holds the difference."""
    document: str | int | None = None
    era: int | None = None

    def __str__(self) -> str:
        """Return one line."""
        place = [self.stream if self.partition is None else f"{self.stream} partition {self.partition}"]
        closer = {"era": self.era, "block": self.block, "source offset": self.offset, "document": self.document}
        place += [f"{name} {value!r}" for name, value in closer.items() if value is not None]
        return f"{self.side}: {', '.join(place)}: {self.text}"


class BlockBytes(NamedTuple):
    """One block, as Kafka or a file holds it."""

    tokens: bytes
    entry: bytes
    chain: bytes
    """The chain hash after it."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Consecutive blocks, as they must be or as a side has them: compared as a whole where all is well."""

    first: int
    tokens: bytes | memoryview
    entries: Sequence[bytes]
    chains: Sequence[bytes]
    message: Message | None = None
    """The message that ends with the last block, if one does."""

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the blocks of a message that was made here."""
        return cls(message.first, message.tokens, message.entries, message.chains, message)

    @classmethod
    def joined(cls, runs: Sequence[Self]) -> Self:
        """Return the blocks of ``runs``, one at least, each of which continues the one before."""
        if len(runs) == 1:
            return runs[0]
        entries = [entry for run in runs for entry in run.entries]
        chains = [chain for run in runs for chain in run.chains]
        return cls(runs[0].first, b"".join([run.tokens for run in runs]), entries, chains)

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)

    def part(self, first: int, end: int) -> Self:
        """Return the blocks ``[first, end)`` of these."""
        if (first, end) == (self.first, self.end):
            return self
        low, high, size = first - self.first, end - self.first, len(self.tokens) // max(1, len(self.entries))
        tokens, message = memoryview(self.tokens)[low * size : high * size], self.message if end == self.end else None
        return type(self)(first, tokens, self.entries[low:high], self.chains[low:high], message)

    def block(self, number: int) -> BlockBytes:
        """Return one block."""
        one = self.part(number, number + 1)
        return BlockBytes(bytes(one.tokens), one.entries[0], one.chains[0])

    def is_equal(self, other: "BlockRun") -> bool:
        """Return whether all bytes of as many blocks are equal."""
        same = self.chains[-1] == other.chains[-1] and self.entries == other.entries
        return same and bytes(self.tokens) == bytes(other.tokens)  # views are compared many times slower


class BlockFinding(NamedTuple):
    """What differs, and in which document of the expected block."""

    kind: Kind
    text: str
    offset: int | None
    document: str | int | None


def compare_blocks(expected: BlockBytes, found: BlockBytes, dtype: np.dtype[np.unsignedinteger]) -> BlockFinding | None:
    """Return the first difference of two blocks; None where all three parts are equal byte for byte."""
    if found.tokens == expected.tokens and found.entry == expected.entry:
        if found.chain == expected.chain:
            return None
        return BlockFinding("different", "its chain hash is another, tokens and documents are equal", None, None)
    token = _first_token(expected.tokens, found.tokens, dtype)
    pieces = decode_entry(expected.entry)
    try:
        others = decode_entry(found.entry)
    except ValueError as error:
        return BlockFinding("different", f"its document entry cannot be read ({error})", *_document(pieces[0]))
    boundary = _first_boundary(pieces, others)
    place = min((one for one in (token, boundary) if one is not None), default=0)
    mine, theirs = _at(pieces, place), _at(others, place)
    if boundary is not None and boundary <= place and mine is not None and theirs is not None:
        ours, other = _source(mine, place), _source(theirs, place)
        if ours != other:
            kind: Kind = "repeated" if other < ours else "skipped"
            text = f"token {place} is token {other[1]} of source offset {other[0]}, not {ours[1]} of {ours[0]}"
            return BlockFinding(kind, text, *_document(mine))
    if token is not None and token == place:
        one, two = (np.frombuffer(tokens, dtype)[token : token + 1].tolist() for tokens in (expected[0], found[0]))
        return BlockFinding("different", f"token {token} is {two or 'missing'}, not {one}", *_document(mine))
    return BlockFinding("different", f"the documents from token {place} on are described otherwise", *_document(mine))


def meta_of(piece: Piece) -> dict[str, Any]:
    """Return the id and carried fields of a piece's document; nothing of a piece whose meta cannot be read."""
    try:
        meta = json.loads(piece.meta) if piece.meta else {}
    except ValueError:
        return {}
    return meta if isinstance(meta, dict) else {}


def _document(piece: Piece | None) -> tuple[int | None, str | int | None]:
    found = meta_of(piece).get("id") if piece is not None else None
    return None if piece is None else piece.offset, found if isinstance(found, str | int) else None


def _first_token(one: bytes, two: bytes, dtype: np.dtype[np.unsignedinteger]) -> int | None:
    """Return the index of the first token that differs; the shorter length where one is the other's beginning."""
    count = min(len(one), len(two)) // dtype.itemsize
    differs = np.frombuffer(one, dtype, count) != np.frombuffer(two, dtype, count)
    if differs.any():
        return int(differs.argmax())
    return None if len(one) == len(two) else count


def _first_boundary(one: Sequence[Piece], two: Sequence[Piece]) -> int | None:
    others = (pair for pair in zip_longest(one, two) if pair[0] != pair[1])
    return next((min(piece.start for piece in pair if piece is not None) for pair in others), None)


def _at(pieces: Sequence[Piece], token: int) -> Piece | None:
    return next((piece for piece in reversed(pieces) if piece.start <= token), None)


def _source(piece: Piece, token: int) -> tuple[int, int]:
    return piece.offset, PADDING if piece.position == PADDING else piece.position + token - piece.start


def first_difference(
    expected: BlockRun, found: BlockRun, dtype: np.dtype[np.unsignedinteger]
) -> tuple[int, BlockFinding] | None:
    """Return the number of the first block of ``found`` that differs, and how; None where those of both are equal."""
    for number in range(found.first, min(found.end, expected.end)):
        if (finding := compare_blocks(expected.block(number), found.block(number), dtype)) is not None:
            return number, finding
    return None


@dataclass(slots=True)
class ChainResult:
    """What was found of one chain, up to offsets that were fixed before anything was read."""

    stream: str
    partition: int
    raw_topic: str
    raw_range: tuple[int, int]
    """Offsets of the raw partition at the mark: the first that is retained, and the end."""
    token_range: tuple[int, int]
    reference: bool = True
    """Whether the chain was recomputed: else topic and store are compared with each other."""
    totals: Totals = field(default_factory=Totals)
    """What became of all records below the mark (without a reference: as the last message says)."""
    reference_blocks: int = 0
    """Full blocks that the records below the mark make."""
    open_tokens: int = 0
    topic_blocks: tuple[int, int] = (0, 0)
    """Number of the first block that the token topic retains, and of the one after the last."""
    store_blocks: tuple[int, int] | None = None
    """The same of the store; None where none was asked for."""
    topic_equal: int = 0
    """Blocks of the topic that are equal byte for byte, with their entries, hashes, cursors and totals."""
    store_equal: int = 0
    """The same of the store, with checksums."""
    messages: int = 0
    carries: int = 0
    """Of these, those that hold no block."""
    carries_equal: int = 0
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
    """Source offsets from the first document on without a verdict on duplicates: `raw_range` ends before them."""
    dead_letters: "array[int]" = field(default_factory=lambda: array("q"))
    """Offsets of the records that must be dead-lettered, from `since` on, below the last published cursor."""
    era_ends: int = 0
    """Ends of eras that name the chain hash which the blocks have there."""
    notes: list[str] = field(default_factory=list)
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

    def difference(
        self, side: Side, kind: Kind, text: str, *, block: int | None = None, entry: bytes = b"", era: int | None = None
    ) -> VerifyDifference:
        """Return a difference in a block; in the first document of its ``entry``, as nothing closer is known."""
        place = _document(decode_entry(entry)[0] if entry else None)
        return VerifyDifference(side, kind, self.stream, self.partition, text, block, *place, era)

    def found_difference(self, side: Side, block: int, finding: BlockFinding) -> VerifyDifference:
        """Return what was found of a block."""
        return VerifyDifference(side, finding.kind, self.stream, self.partition, finding.text, block, *finding[2:])

    def other_blocks(self, era: int, block: int) -> VerifyDifference:
        """Return the difference of an era that ends before ``block`` with another hash than the blocks there."""
        text = (
            "the era names other blocks than the token topic holds before this one: the topic lost its end and got "
            "other text. Trainers halt before that era: give new text a stream of its own (stream_suffix)"
        )
        return self.difference("control topic", "different", text, block=block, era=era)

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
    eras: int = 0
    """Eras on the control topic; those before `since` count as well."""
    blocks: int = 0
    """Blocks of those from `since` on."""
    ended: bool = False
    ignored: int = 0
    """Records that came as eras and are none: another writer was first, or the topic lost what they continue."""
    store_eras: int | None = None
    """Eras that the store held at the mark; None where none was asked for, or it lacks the stream."""
    store_equal: int = 0
    """Those of which line and row are what they must be, byte for byte."""
    verified: VerifiedEras | None = None
    differences: list[VerifyDifference] = field(default_factory=list)

    @property
    def store_behind(self) -> int:
        """Eras of the topic that the store did not hold at the mark."""
        return max(0, self.eras - self.store_eras) if self.store_eras is not None else 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        names = ("stream", "since", "eras", "blocks", "ended", "ignored", "store_eras", "store_equal", "store_behind")
        return {**{name: getattr(self, name) for name in names}, "differences": list(map(asdict, self.differences))}


@dataclass(slots=True)
class DomainResult:
    """What was found of the duplicates in one domain, judged again in the order of its signatures."""

    domain: str
    documents: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)
    """How many of these, by reason."""
    ranges: int = 0
    notes: list[str] = field(default_factory=list)
    differences: list[VerifyDifference] = field(default_factory=list)

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
    """All that is wrong: one of each side of a chain or of a stream's eras at most, and of each partition's dead
    letters."""
    notes: Sequence[str]
    seconds: float
    seed: int = 0
    eras: Sequence[EraResult] = ()
    domains: Sequence[DomainResult] = ()

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
    blocks: int
    """Over all chains of the partition."""
    value_bytes: int


class VerifyProgress(NamedTuple):
    """How far a verification is."""

    offsets: int
    """Of the source; those of a raw partition count once for each pass over it."""
    of_offsets: int
    blocks: int
    value_bytes: int
