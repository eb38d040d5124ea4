"""What is compared: consecutive blocks as they must be, and where two versions of one block first differ. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from tokenmill.wire.message import Message
from tokenmill.wire.pieces import PADDING, Piece, decode_entry

from .verify_result import ChainResult, Kind, Side, VerifyDifference


class BlockBytes(NamedTuple):
    """One block, as Kafka or a file holds it."""

    tokens: bytes | memoryview
    entry: bytes | memoryview
    chain: bytes
    """The chain hash after it."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Consecutive blocks, as they must be or as a side has them: compared as a whole where all is well."""

    first: int
    tokens: bytes | memoryview
    """Back to back."""
    entries: Sequence[bytes]
    chains: Sequence[bytes]
    """The chain hash after each block."""
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
    places = [place for place in (token, boundary) if place is not None]
    place = min(places, default=0)
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


def _first_token(one: bytes | memoryview, two: bytes | memoryview, dtype: np.dtype[np.unsignedinteger]) -> int | None:
    """Return the index of the first token that differs; the shorter length where one is the other's beginning."""
    count = min(len(one), len(two)) // dtype.itemsize
    differs = np.frombuffer(one, dtype, count) != np.frombuffer(two, dtype, count)
    if differs.any():
        return int(differs.argmax())
    return None if len(one) == len(two) else count


def _first_boundary(one: Sequence[Piece], two: Sequence[Piece]) -> int | None:
    """Return the start of the first piece that differs."""
    for mine, theirs in zip(one, two, strict=False):
        if mine != theirs:
            return min(mine.start, theirs.start)
    if len(one) != len(two):
        return max(one, two, key=len)[min(len(one), len(two))].start
    return None


def _at(pieces: Sequence[Piece], token: int) -> Piece | None:
    """Return the piece that holds a token."""
    return next((piece for piece in reversed(pieces) if piece.start <= token), None)


def _source(piece: Piece, token: int) -> tuple[int, int]:
    """Return where a token comes from: the record's offset, and the token's number in the document."""
    return piece.offset, PADDING if piece.position == PADDING else piece.position + token - piece.start


def first_difference(
    expected: BlockRun, found: BlockRun, dtype: np.dtype[np.unsignedinteger]
) -> tuple[int, BlockFinding] | None:
    """Return the number of the first block of ``found`` that differs, and how; None where those of both are equal."""
    for number in range(found.first, min(found.end, expected.end)):
        finding = compare_blocks(expected.block(number), found.block(number), dtype)
        if finding is not None:
            return number, finding
    return None


def difference(
    result: ChainResult,
    side: Side,
    kind: Kind,
    text: str,
    *,
    block: int | None = None,
    entry: bytes | memoryview = b"",
) -> VerifyDifference:
    """Return a difference in a block; in the first document of its ``entry``, as nothing closer is known."""
    place = _document(decode_entry(entry)[0] if entry else None)
    return VerifyDifference(side, kind, result.stream, result.partition, text, block, *place)


def found_difference(result: ChainResult, side: Side, block: int, finding: BlockFinding) -> VerifyDifference:
    """Return what was found of a block."""
    return VerifyDifference(side, finding.kind, result.stream, result.partition, finding.text, block, *finding[2:])


def other_blocks(result: ChainResult, era: int, block: int) -> VerifyDifference:
    """Return the difference of an era that ends before ``block`` with another hash than the blocks there."""
    text = (
        "the era names other blocks than the token topic holds before this one: the topic lost its end and got "
        "other text. Trainers halt before that era: give new text a stream of its own (stream_suffix)"
    )
    return replace(difference(result, "control topic", "different", text, block=block), era=era)
