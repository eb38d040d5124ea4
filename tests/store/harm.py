"""A process that dies before its nth call of the system, played by an exception; and who gives what was lost."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator

import pytest

from tests.store.chains import cut
from tokenmill.app.tools.repair import Given
from tokenmill.reading import Blocks
from tokenmill.store import StreamInfo


class Kill(BaseException):
    """The end of a process; nothing catches it."""


def dies(work: Callable[[], object], nth: int, calls: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do the work, but die before the nth of these calls of `os`; return whether it came to it."""
    left = nth

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Kill
            return call(*args, **named)

        return wrapper

    with monkeypatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            work()
        except Kill:
            return True
    return False


class ChainDonor:
    """Gives the blocks of a whole chain, but for some, and remembers which it was asked for."""

    def __init__(self, chain: Blocks, info: StreamInfo, *, lacks: Collection[int] = ()) -> None:
        self.asked: set[int] = set()
        self._chain, self._info, self._lacks = chain, info, lacks

    def __call__(self, first: int, end: int) -> Iterator[Given]:
        for number in range(first, min(end, len(self._chain.entries))):
            self.asked.add(number)
            if number not in self._lacks:
                block = cut(self._chain, self._info, number, number + 1)
                before = self._chain.chains[number - 1] if number else None
                yield Given(number, bytes(block.tokens), block.entries[0], before)
