"""What is compared: consecutive blocks as they must be, and where two versions of one block first differ. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

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


class ExpectedBlocks:
    """Consecutive blocks as they must be, compared as a whole where all is well, and one by one where it is not."""

    def __init__(
        self, first: int, tokens: bytes | memoryview, entries: Sequence[bytes], chains: Sequence[bytes]
    ) -> None:
        """Take the blocks from ``first`` on, with ``tokens`` back to back; ``chains`` are the hashes after each."""
        self.first = first
        self.tokens = bytes(tokens)
        self.entries = entries
        self.chains = chains
        """The chain hash after each block."""
        self._size = len(tokens) // max(1, len(entries))

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the blocks of a message that was made here."""
        return cls(message.first, message.tokens, message.entries, message.chains)

    @classmethod
    def joined(cls, runs: Sequence[Self]) -> Self:
        """Return the blocks of ``runs``, one at least, each of which continues the one before."""
        if len(runs) == 1:
            return runs[0]
        entries = [entry for run in runs for entry in run.entries]
        return cls(
            runs[0].first,
            b"".join([run.tokens for run in runs]),
            entries,
            [chain for run in runs for chain in run.chains],
        )

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)

    def block(self, number: int) -> BlockBytes:
        """Return one block."""
        index = number - self.first
        return BlockBytes(
            self.tokens[index * self._size : (index + 1) * self._size], self.entries[index], self.chains[index]
        )

    def tokens_from(self, first: int, count: int) -> bytes:
        """Return the tokens of so many blocks from ``first`` on."""
        at = (first - self.first) * self._size
        return self.tokens[at : at + count * self._size]

    def entries_from(self, first: int, count: int) -> Sequence[bytes]:
        """Return the entries of so many blocks from ``first`` on."""
        at = first - self.first
        return self.entries[at : at + count]


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


def document_id(piece: Piece) -> str | int | None:
    """Return the id in a piece's meta; None where there is none, or where the meta is no JSON object."""
    try:
        meta = json.loads(piece.meta) if piece.meta else {}
    except ValueError:
        return None
    found = meta.get("id") if isinstance(meta, dict) else None
    return found if isinstance(found, str | int) else None


def _document(piece: Piece | None) -> tuple[int | None, str | int | None]:
    return (None, None) if piece is None else (piece.offset, document_id(piece))


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


@dataclass(frozen=True, slots=True)
class TopicRun:
    """Consecutive blocks of one message."""

    first: int
    tokens: bytes | memoryview
    entries: Sequence[bytes]
    chains: Sequence[bytes]
    """The hash after each block."""
    message: Message | None
    """Where the last block is the message's last."""

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)


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
    piece = decode_entry(entry)[0] if entry else None
    offset, document = (piece.offset, document_id(piece)) if piece is not None else (None, None)
    return VerifyDifference(side, kind, result.stream, result.partition, text, block, offset, document)


def other_blocks(result: ChainResult, era: int, block: int) -> VerifyDifference:
    """Return the difference of an era that ends before ``block`` with another hash than the blocks there."""
    text = (
        "the era names other blocks than the token topic holds before this one: the topic lost its end and got "
        "other text. Trainers halt before that era: give new text a stream of its own (stream_suffix)"
    )
    return replace(difference(result, "control topic", "different", text, block=block), era=era)
