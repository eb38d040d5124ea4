"""A donor for tests of repairs: a chain in memory, of which it may hold only a part."""

from collections.abc import Collection, Iterator

from tokenmill.app.tools.repair import Given
from tokenmill.reading import Blocks
from tokenmill.store import StreamInfo


class ChainDonor:
    """Gives the blocks of a whole chain, but for some, and remembers which it was asked for."""

    def __init__(self, chain: Blocks, info: StreamInfo, *, lacks: Collection[int] = ()) -> None:
        self.asked: set[int] = set()
        self._chain = chain
        self._info = info
        self._lacks = lacks

    def __call__(self, first: int, end: int) -> Iterator[Given]:
        size = self._info.block_bytes
        for number in range(first, min(end, len(self._chain.entries))):
            self.asked.add(number)
            if number not in self._lacks:
                tokens = bytes(memoryview(self._chain.tokens)[number * size : (number + 1) * size])
                before = self._chain.chains[number - 1] if number else None
                yield Given(number, tokens, self._chain.entries[number], before)
