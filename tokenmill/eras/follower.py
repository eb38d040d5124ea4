"""Reading eras from a log that may lose its tail: the reader's position is its own head's record.

A look, with ``read`` for reading a log from an offset (None: its beginning) to its end::

    records = read(follower.position)
    if follower.position is not None and not follower.holds(next(records)):
        follower.restart()
        records = read(None)
    eras = [era for record in records if (era := follower.add(record))]
    follower.finish()

A look that is broken off is undone with `EraFollower.rewind`, up to the eras that were given to somebody.
"""

from typing import NamedTuple

from tokenmill.eras.log import EraLog
from tokenmill.eras.record import ERA_KEY, Era
from tokenmill.errors import DifferenceError


class LogRecord(NamedTuple):
    """A record of the control topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class Standing(NamedTuple):
    """Where a follower stands, between two looks or behind a new era."""

    last: Era | None
    position: int | None
    ignored: int


class EraFollower:
    """Follows the eras on a control topic, look by look, in constant memory."""

    def __init__(self, stream: str, fingerprint: bytes, last: Era | None = None, position: int | None = None) -> None:
        """Begin after era ``last``, whose record was seen at offset ``position``; with None before the first era."""
        self._stream = stream
        self._fingerprint = fingerprint
        self._known: Era | None = None
        """While the log is read again: the era that must be met on the way."""
        self.position = position if last is not None else None
        """The offset from which to look; None: from the log's beginning."""
        self.log = EraLog(fingerprint, last)
        """How far the eras go that were seen."""
        self.ignored = 0
        """Records that came as eras and are none; those behind the last era come with each look, and count again."""

    @property
    def standing(self) -> Standing:
        """Where to `rewind` to; taken before a look, or behind an era that `add` returned."""
        return Standing(self.log.last, self.position, self.ignored)

    def holds(self, record: LogRecord | None) -> bool:
        """Return whether the first record of a look from `position` is the last era that was seen.

        If not, the broker lost its log's tail, and other records may stand at the same offsets: `restart`.
        """
        last = self.log.last
        return (
            record is not None
            and last is not None
            and (record.offset, record.key) == (self.position, ERA_KEY)
            and record.value == last.pack()
        )

    def restart(self) -> None:
        """Expect the log's records from its beginning; the last era that was seen must be among the eras there."""
        self._known = self._known or self.log.last
        self.log = EraLog(self._fingerprint)
        self.position = None
        self.ignored = 0

    def rewind(self, standing: Standing) -> None:
        """Stand there again, as if nothing had been read since: for a look that did not come to its end.

        What it found since then was given to nobody, so nobody may be held to it.
        """
        self._known = None
        self.log = EraLog(self._fingerprint, standing.last)
        self.position = standing.position
        self.ignored = standing.ignored

    def add(self, record: LogRecord) -> Era | None:
        """Take the next record; return the era if it is one that was not seen before.

        Raises:
            DifferenceError: the era that was seen last is not on the chain that stands there now.

        """
        if record.key != ERA_KEY:
            return None
        era = self.log.add(record.value)
        if era is None:
            self.ignored += 1
            return None
        self.position = record.offset
        if self._known is None:
            return era
        if era.number == self._known.number:
            if era != self._known:
                raise self._lost(self._known)
            self._known = None
        return None

    def finish(self) -> None:
        """End a look: the log's end was reached.

        Raises:
            DifferenceError: the log was read again and ends before the era that was seen last.

        """
        if self._known is not None:
            raise self._lost(self._known)

    def _lost(self, era: Era) -> DifferenceError:
        return DifferenceError(
            f"era {era.number} of {self._stream} is not on its control topic any more, which lost its tail: the topic "
            "cannot tell what was trained on since; go on from a checkpoint before that era, or give new text a "
            "stream of its own (stream_suffix)"
        )
