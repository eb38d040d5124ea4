"""The packing ``fit`` once more, slow and plain: a list of open blocks, and a look at all of them for each document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import NamedTuple


class LeavingBlock(NamedTuple):
    """A block that leaves, and where its document is then."""

    tokens: list[int]
    pieces: list[tuple[int, int, int, bytes]]
    """Start, offset, position and meta of each."""
    padding: int
    taken: int
    """Tokens of the document that is being placed which are in blocks that left; 0 where all of it is placed."""
    finished: bool
    """Whether all of that document is placed, or all blocks are closed that a flush closes."""


@dataclass
class OpenBlock:
    """An open block."""

    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)
    """Of the record of each piece."""

    def ends(self) -> list[int]:
        """Return where each piece ends."""
        return [*(start for start, *_ in self.pieces[1:]), len(self.tokens)]


@dataclass
class FitReference:
    """The open blocks of one chain, in the order in which they were opened."""

    block_tokens: int
    open_blocks: int
    max_age_offsets: int
    padding: int
    blocks: list[OpenBlock] = field(default_factory=list)

    def add(
        self, offset: int, tokens: Sequence[int], meta: bytes, crc: int, taken: int = 0
    ) -> Iterator[LeavingBlock]:
        """Place a document of which ``taken`` tokens are in blocks that left; yield the blocks that leave."""
        yield from self._close_old(offset)
        size, end = self.block_tokens, len(tokens)
        while end - taken >= size:
            piece = (0, offset, taken, meta)
            taken += size
            yield LeavingBlock(list(tokens[taken - size : taken]), [piece], 0, taken % end, taken == end)
        rest = end - taken
        if not rest:
            return
        fitting = [block for block in self.blocks if self._room(block) >= rest]
        if not fitting and len(self.blocks) == self.open_blocks:
            yield self._close(min(self.blocks, key=self._room), offset, taken, finished=False)
        block = min(fitting, key=self._room, default=None)
        if block is None:
            block = OpenBlock()
            self.blocks.append(block)
        block.pieces.append((len(block.tokens), offset, taken, meta))
        block.crcs.append(crc)
        block.tokens += tokens[taken:]
        if not self._room(block):
            self.blocks.remove(block)
            yield LeavingBlock(block.tokens, block.pieces, 0, 0, finished=True)

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Close all blocks; yield them."""
        for closed in self._close_old(offset):
            yield closed._replace(finished=not self.blocks)
        while self.blocks:
            yield self._close(self.blocks[0], offset, 0, finished=len(self.blocks) == 1)

    def references(self) -> bytes:
        """Return the open blocks as references."""
        if not self.blocks:
            return b""
        data = pack("<I", len(self.blocks)) + b"".join(pack("<I", len(block.pieces)) for block in self.blocks)
        for block in self.blocks:
            for (start, offset, position, _), end, crc in zip(block.pieces, block.ends(), block.crcs, strict=True):
                data += pack("<qIII", offset, position, end - start, crc)
        return data

    def _close_old(self, offset: int) -> Iterator[LeavingBlock]:
        while self.blocks and self.blocks[0].pieces[0][1] + self.max_age_offsets < offset:
            oldest = self.blocks[0]
            yield self._close(oldest, oldest.pieces[0][1] + self.max_age_offsets + 1, 0, finished=False)

    def _close(self, block: OpenBlock, offset: int, taken: int, *, finished: bool) -> LeavingBlock:
        self.blocks.remove(block)
        room = self._room(block)
        pieces = [*block.pieces, (len(block.tokens), offset, -1, b"")]
        return LeavingBlock(block.tokens + [self.padding] * room, pieces, room, taken, finished)

    def _room(self, block: OpenBlock) -> int:
        return self.block_tokens - len(block.tokens)
