"""A broker of lists: logs whose beginnings expire, whose ends are lost, and that are made anew."""

import types
from collections.abc import Generator
from typing import Generic, TypeVar

from tokenmill.errors import MovedError

T = TypeVar("T")


@types.coroutine
def step(what: str = "works") -> Generator[str, None, None]:
    """Let the others have their turn; ``what`` tells the scheduler whether there was anything to do."""
    yield what


class Log(Generic[T]):
    """One partition: its committed records, by offset."""

    def __init__(self) -> None:
        self.first = 0
        self.end = 0
        self.leader = 0
        """Counts the changes of leader: a log cannot lose anything without one."""
        self.entries: dict[int, T] = {}
        self.truth: dict[int, T] = {}
        """The entries, and those that retention removed: what finally stands, for the judge alone."""

    def append(self, entry: T, gap: int = 0) -> int:
        """Put an entry at the end, after ``gap`` offsets that hold none; return its offset."""
        offset = self.end + gap
        self.entries[offset] = self.truth[offset] = entry
        self.end = offset + 1
        return offset

    def skip(self, gap: int) -> None:
        """Let offsets pass that hold no record (transaction markers, aborted records)."""
        self.end += gap

    def lose_tail(self, cut: int) -> None:
        """Forget all that stands at or above ``cut``; the next entry gets an offset that was taken before."""
        self.end = min(self.end, max(cut, self.first))
        for offset in [offset for offset in self.truth if offset >= self.end]:
            self.truth.pop(offset)
            self.entries.pop(offset, None)
        self.leader += 1

    def retain_from(self, first: int) -> None:
        self.first = max(self.first, min(first, self.end))
        for offset in [offset for offset in self.entries if offset < self.first]:
            del self.entries[offset]

    def recreate(self) -> None:
        leader = self.leader + 1
        self.__init__()  # type: ignore[misc] # it is a new log in all but its name
        self.leader = leader

    def read(self, start: int, end: int) -> list[tuple[int, T]]:
        if start < end and (start < self.first or end > self.end):
            raise MovedError(f"the log holds {self.first} to {self.end}, wanted are {start} to {end}")
        return [(offset, self.entries[offset]) for offset in range(start, end) if offset in self.entries]
