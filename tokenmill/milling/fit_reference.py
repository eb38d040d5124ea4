"""The packing ``fit`` once more, slow and plain: a list of open blocks, and a look at all of them for each document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import calcsize, iter_unpack, pack, unpack, unpack_from

from tokenmill.milling.reference_packings import ITEM, LeavingBlock, OpenBlock, pieces_of
from tokenmill.packings import Fit, packing_of
from tokenmill.reading.resume import ResumePoint
from tokenmill.recipe import Recipe


@dataclass(slots=True)
class ReferringBlock(OpenBlock):
    """An open block, and the CRC of the record of each of its pieces."""

    crcs: list[int] = field(default_factory=list)


class FitReference:
    """Whole documents, each in the open block with the least sufficient room."""

    def __init__(self, recipe: Recipe) -> None:
        """Begin with no open block."""
        parameters = packing_of(recipe)
        assert isinstance(parameters, Fit)
        self._size, self._padding, self._item = recipe.block_tokens, recipe.padding_id, ITEM[recipe.dtype]
        self._most_open, self._max_age = parameters.open_blocks, parameters.max_age_offsets
        self.blocks: list[ReferringBlock] = []

    def dropped(self, tokens: Sequence[int]) -> str:  # noqa: ARG002 - the protocol's
        """Nothing is."""
        return ""

    def given(self, tokens: Sequence[int]) -> int:
        """All of them."""
        return len(tokens)

    def add(self, offset: int, tokens: Sequence[int], meta: bytes, crc: int) -> Iterator[LeavingBlock]:
        """Give whole blocks, then place the rest; yield the blocks that leave."""
        yield from self._close_old(offset)
        taken, end = 0, len(tokens)
        while end - taken >= self._size:
            begin, taken = taken, taken + self._size
            figures = {"padding": 0, "joined": 0, "cut": int(begin == 0 and taken < end)}
            finished = taken == end
            block = list(tokens[begin:taken]), [(0, offset, begin, meta)]
            yield LeavingBlock(*block, 0 if finished else taken, finished, figures)
        if taken == end:
            return
        fitting = [block for block in self.blocks if self._room(block) >= end - taken]
        if not fitting and len(self.blocks) == self._most_open:
            yield self._close(min(self.blocks, key=self._room), offset, taken, finished=False)
        if not fitting:
            self.blocks.append(ReferringBlock())
            fitting = self.blocks[-1:]
        block = min(fitting, key=self._room)
        block.pieces.append((len(block.tokens), offset, taken, meta))
        block.crcs.append(crc)
        block.tokens += tokens[taken:]
        if not self._room(block):
            self.blocks.remove(block)
            yield LeavingBlock(block.tokens, block.pieces, 0, True, self._figures(block, 0))

    def flush(self, offset: int) -> Iterator[LeavingBlock]:
        """Close all blocks, the oldest first."""
        for closed in self._close_old(offset):
            yield closed._replace(finished=not self.blocks)
        while self.blocks:
            yield self._close(self.blocks[0], offset, 0, finished=len(self.blocks) == 1)

    def reopen(self, point: ResumePoint) -> None:
        """Begin with the blocks that a carry holds by value."""
        self.blocks = []
        if not point.references:
            return
        (number,) = unpack_from("<I", point.references)
        counts = unpack_from(f"<{number}I", point.references, 4)
        crcs = [crc for *_, crc in iter_unpack("<qIII", point.references[4 + 4 * number :])]
        sizes = [size for _, _, size, _ in iter_unpack("<qIII", point.references[4 + 4 * number :])]
        count = len(point.open_tokens) // calcsize(self._item)
        tokens, entries = list(unpack(f"<{count}{self._item}", point.open_tokens)), point.open_entry
        for pieces in counts:
            rows, metas = unpack_from("<II", entries)
            end = 8 + 24 * rows + metas
            length = sum(sizes[:pieces])
            self.blocks.append(ReferringBlock(tokens[:length], pieces_of(entries[:end]), crcs[:pieces]))
            tokens, entries, crcs, sizes = tokens[length:], entries[end:], crcs[pieces:], sizes[pieces:]

    def references(self) -> bytes:
        """Return the open blocks as references."""
        if not self.blocks:
            return b""
        data = pack("<I", len(self.blocks)) + b"".join(pack("<I", len(block.pieces)) for block in self.blocks)
        for block in self.blocks:
            ends = [*(start for start, *_ in block.pieces[1:]), len(block.tokens)]
            for (start, offset, position, _), end, crc in zip(block.pieces, ends, block.crcs, strict=True):
                data += pack("<qIII", offset, position, end - start, crc)
        return data

    def _close_old(self, offset: int) -> Iterator[LeavingBlock]:
        """Close the blocks whose oldest piece is too far behind."""
        while self.blocks and self.blocks[0].pieces[0][1] + self._max_age < offset:
            too_old_from = self.blocks[0].pieces[0][1] + self._max_age + 1
            yield self._close(self.blocks[0], too_old_from, 0, finished=False)

    def _close(self, block: ReferringBlock, offset: int, taken: int, *, finished: bool) -> LeavingBlock:
        self.blocks.remove(block)
        room = self._room(block)
        pieces = [*block.pieces, (len(block.tokens), offset, -1, b"")]
        figures = self._figures(block, room)
        return LeavingBlock(block.tokens + [self._padding] * room, pieces, taken, finished, figures)

    def _room(self, block: OpenBlock) -> int:
        return self._size - len(block.tokens)

    @staticmethod
    def _figures(block: OpenBlock, padding: int) -> dict[str, int]:
        return {"padding": padding, "joined": int(len(block.pieces) > 1), "cut": 0}
