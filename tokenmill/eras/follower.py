"""Reading eras from a log that may lose its tail: a reader's position is the record of its last era.

One look, where ``read`` reads the log from an offset (None: its beginning) to its end::

    records = read(follower.position)
    if follower.position is not None and not follower.holds(next(records)):
        follower.restart()
        records = read(None)
    eras = [era for record in records if (era := follower.add(record))]
    follower.finish()

A look that was interrupted is undone with `EraFollower.rewind`, back to the last era that was handed on.
"""

from typing import NamedTuple

from tokenmill.eras.record import ERA_KEY, Era, EraLog
from tokenmill.errors import DifferenceError


class LogRecord(NamedTuple):
    """A record of the control topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class FollowerState(NamedTuple):
    """The state of a follower, between two looks or after a new era."""

    last: Era | None
    position: int | None
    """Offset of its record on the control topic; None: look from the log's beginning."""
    ignored: int


class EraFollower:
    """Follows the eras on a control topic, look by look, in constant memory."""

    def __init__(self, stream: str, fingerprint: bytes, last: Era | None = None, position: int | None = None) -> None:
        """Begin after era ``last``, whose record was seen at offset ``position``; with None before the first era."""
        self._stream = stream
        self._fingerprint = fingerprint
        self._known: Era | None = None
        """While the log is read again from its beginning: the era that must be found in it."""
        self.position = position if last is not None else None
        """The offset from which to look; None: from the log's beginning."""
        self.log = EraLog(fingerprint, last)
        self.ignored = 0
        """Records with the key of an era that are no next era; those after the last era count again with each look."""

    @property
    def state(self) -> FollowerState:
        """The state to `rewind` to; taken before a look, or after an era that `add` returned."""
        return FollowerState(self.log.last, self.position, self.ignored)

    def holds(self, record: LogRecord | None) -> bool:
        """Return whether a look's first record is the last era that was seen; else the log lost its tail: `restart`."""
        last = self.log.last
        return (
            record is not None
            and last is not None
            and (record.offset, record.key) == (self.position, ERA_KEY)
            and record.value == last.pack()
        )

    def restart(self) -> None:
        """Expect the log's records from its beginning; the last era that was seen must be among them."""
        self._known = self._known or self.log.last
        self.log = EraLog(self._fingerprint)
        self.position = None
        self.ignored = 0

    def rewind(self, state: FollowerState) -> None:
        """Go back to that state: for a look that did not reach the log's end, whose eras were not handed on."""
        self._known = None
        self.log = EraLog(self._fingerprint, state.last)
        self.position = state.position
        self.ignored = state.ignored

    def add(self, record: LogRecord) -> Era | None:
        """Return a record's era if it is new; raises DifferenceError where the last one seen is not on this chain."""
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
        """End a look, at the log's end; raises DifferenceError where that is before the era that was seen last."""
        if self._known is not None:
            raise self._lost(self._known)

    def _lost(self, era: Era) -> DifferenceError:
        return DifferenceError(
            f"era {era.number} of {self._stream} is not on its control topic any more, which lost its tail: the topic "
            "does not say what was trained on since; go on from a checkpoint before that era, or give new text a "
            "stream of its own (stream_suffix)"
        )
