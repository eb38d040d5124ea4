"""The packing ``fit`` once more, slow and plain: a list of open blocks, and a look at all of them for each document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import calcsize, iter_unpack, pack, unpack, unpack_from
from typing import NamedTuple


class LeavingBlock(NamedTuple):
    """A block that leaves, and where its document is then."""

    tokens: list[int]
    pieces: list[tuple[int, int, int, bytes]]
    """Start, offset, position and meta of each."""
    figures: dict[str, int]
    """Tokens of padding; whether it holds several documents; whether it is the first of a document that fits none."""
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
            figures = {"padding": 0, "joined": 0, "cut": int(taken == size < end)}
            yield LeavingBlock(list(tokens[taken - size : taken]), [piece], figures, taken % end, taken == end)
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
            yield LeavingBlock(block.tokens, block.pieces, self._figures(block, 0), 0, finished=True)

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
        return LeavingBlock(block.tokens + [self.padding] * room, pieces, self._figures(block, room), taken, finished)

    @staticmethod
    def _figures(block: OpenBlock, padding: int) -> dict[str, int]:
        return {"padding": padding, "joined": int(len(block.pieces) > 1), "cut": 0}

    def _room(self, block: OpenBlock) -> int:
        return self.block_tokens - len(block.tokens)


def reopened(point, item: str) -> list[OpenBlock]:
    """Return the open blocks of a point, by value."""
    blocks: list[OpenBlock] = []
    if not point.references:
        return blocks
    (count,) = unpack_from("<I", point.references)
    counts = unpack_from(f"<{count}I", point.references, 4)
    rows = list(iter_unpack("<qIII", point.references[4 + 4 * count :]))
    tokens = unpack(f"<{len(point.open_tokens) // calcsize(item)}{item}", point.open_tokens)
    entry, row, token = 0, 0, 0
    for pieces in counts:
        block = OpenBlock()
        number, metas = unpack_from("<II", point.open_entry, entry)
        at = entry + 8 + 24 * number
        for n, (start, size, offset, position) in enumerate(iter_unpack("<IIqq", point.open_entry[entry + 8 : at])):
            block.pieces.append((start, offset, position, point.open_entry[at : at + size]))
            block.crcs.append(rows[row + n][3])
            at += size
        length = sum(r[2] for r in rows[row : row + pieces])
        block.tokens = list(tokens[token : token + length])
        entry, row, token = entry + 8 + 24 * number + metas, row + pieces, token + length
        blocks.append(block)
    return blocks
