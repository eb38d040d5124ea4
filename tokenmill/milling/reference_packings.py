"""Each packing once more, slow and plain, token by token, from the format's description: parts of the reference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import calcsize, iter_unpack, unpack, unpack_from
from typing import Any, Final, NamedTuple, Protocol

from tokenmill.reading.resume import ResumePoint
from tokenmill.recipe import Recipe

ITEM: Final = {"uint8": "B", "uint16": "H", "uint32": "I"}
"""The dtypes, as `struct` names them."""
Pieces = list[tuple[int, int, int, bytes]]
"""Start, offset, position and meta of each piece of a block."""


class LeavingBlock(NamedTuple):
    """A block that leaves, and where its document is then."""

    tokens: list[int]
    pieces: Pieces
    taken: int
    """Tokens of the document that is being placed which are in blocks that left; 0 where all of it is placed."""
    finished: bool
    """Whether all of that document is placed, or all blocks are closed that a flush closes."""
    figures: Mapping[str, int]
    """What the totals count of the block (`Totals.packing`)."""


@dataclass(slots=True)
class OpenBlock:
    """A block that waits for more tokens."""

    tokens: list[int] = field(default_factory=list)
    pieces: Pieces = field(default_factory=list)


class ReferencePacking(Protocol):
    """What the reference asks of a packing."""

    blocks: list[OpenBlock]
    """The open ones, in their order."""

    def dropped(self, tokens: Sequence[int]) -> str:
        """Return why a document of these tokens is filtered out; an empty text if it is not."""
        ...

    def given(self, tokens: Sequence[int]) -> int:
        """Return how many tokens a kept document of these tokens gives to blocks, padding not counted."""
        ...

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:
        """Place a document whose record has this CRC; yield the blocks that leave, each before it goes on."""
        ...

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Do what a flush record at ``offset`` asks for; yield the blocks that leave."""
        ...

    def reopen(self, point: ResumePoint) -> None:
        """Begin with the open blocks of a point."""
        ...

    def references(self) -> bytes:
        """Return the open blocks as references, in a packing that has them in every message; else nothing."""
        ...


class ConcatReference:
    """All documents one after the other, cut where a block ends."""

    def __init__(self, recipe: Recipe) -> None:
        """Begin with no open block."""
        self._recipe = recipe
        self.blocks: list[OpenBlock] = []

    def dropped(self, tokens: Sequence[int]) -> str:  # noqa: ARG002 - the protocol's
        """Nothing is."""
        return ""

    def given(self, tokens: Sequence[int]) -> int:
        """All of them."""
        return len(tokens)

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:  # noqa: ARG002
        """Append the tokens, one after the other."""
        last = len(tokens) - 1
        for position, token in enumerate(tokens):
            if not self.blocks:
                self.blocks.append(OpenBlock())
            (block,) = self.blocks
            if not block.tokens or position == 0:
                block.pieces.append((len(block.tokens), offset, position, meta))
            block.tokens.append(token)
            if len(block.tokens) == self._recipe.block_tokens:
                self.blocks.clear()
                taken = 0 if position == last else position + 1
                yield LeavingBlock(block.tokens, block.pieces, taken, position == last, {})

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Fill the open block, if there is one."""
        while self.blocks:
            block = self.blocks.pop()
            missing = self._recipe.block_tokens - len(block.tokens)
            block.pieces.append((len(block.tokens), offset, -1, b""))
            yield LeavingBlock(block.tokens + [self._recipe.padding_id] * missing, block.pieces, 0, True, {})

    def reopen(self, point: ResumePoint) -> None:
        """Begin with the one that a carry holds."""
        item = ITEM[self._recipe.dtype]
        tokens = unpack(f"<{len(point.open_tokens) // calcsize(item)}{item}", point.open_tokens)
        if tokens:
            self.blocks = [OpenBlock(list(tokens), _pieces_of(point.open_entry))]

    def references(self) -> bytes:
        """None: carries hold the open block."""
        return b""


REFERENCES: Final[Mapping[str, Any]] = {"concat": ConcatReference}
"""By the packing's name, what makes one from a recipe."""


def reference_packing(recipe: Recipe) -> ReferencePacking:
    """Return the recipe's packing without any open block."""
    packing: ReferencePacking = REFERENCES[recipe.packing](recipe)
    return packing


def _pieces_of(entry: bytes) -> Pieces:
    """Return start, offset, position and meta of each piece of an entry."""
    head, row = calcsize("<II"), calcsize("<IIqq")
    count, _ = unpack_from("<II", entry)
    at = head + count * row
    pieces = []
    for start, size, offset, position in iter_unpack("<IIqq", entry[head:at]):
        pieces.append((start, offset, position, entry[at : at + size]))
        at += size
    return pieces
