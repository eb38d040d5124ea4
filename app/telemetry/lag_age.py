"""How old the records are that a partition has yet to deal with."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Stamped(Protocol):
    """A Kafka record, as far as it matters here."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """When it was written, in milliseconds since 1970."""
        ...


class _Span(NamedTuple):
    first: int
    last: int
    first_timestamp: int
    last_timestamp: int


class Trail:
    """Remembers of each fetch where it began and ended and when these two records were written; knows no clock.

    Between them, timestamps are taken to rise evenly: nothing is done for each record.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._spans: deque[_Span] = deque()
        self._last = 0
        """The latest timestamp that was passed; 0 where none was."""
        self._level = 0
        """When nothing was left to be taken, the last time that somebody looked."""

    def begin(self, timestamp: int) -> None:
        """Continue after a record of this timestamp; 0 where there is none."""
        self._spans.clear()
        self._last = timestamp

    def passed(self, records: Sequence[Stamped]) -> None:
        """Take what a fetch brought."""
        if records:
            first, last = records[0], records[-1]
            self._spans.append(_Span(first.offset, last.offset, first.timestamp, last.timestamp))
            self._last = max(self._last, last.timestamp)

    def forget(self, offset: int) -> None:
        """Forget what lies below ``offset`` altogether."""
        while self._spans and self._spans[0].last < offset:
            self._spans.popleft()

    def level(self, now: int) -> None:
        """Take note that all records that there are at ``now`` have been passed."""
        self._level = max(self._level, now)

    def age(self, offset: int, now: int) -> float | None:
        """Return how many seconds ago the first record at or after ``offset`` was written; None if that is unknown.

        A record that was not seen yet is taken to be as old as the last one that was, unless there was nothing to take
        since: then it came after that.
        """
        written = self._written(offset)
        return max(0.0, (now - written) / 1000) if written else None

    def _written(self, offset: int) -> int:
        if not self._spans or offset > self._spans[-1].last:
            return max(self._last, self._level)
        span = next(span for span in self._spans if offset <= span.last)
        share = max(0, offset - span.first) / max(1, span.last - span.first)
        return round(span.first_timestamp + share * (span.last_timestamp - span.first_timestamp))
