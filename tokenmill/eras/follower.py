"""Reading eras from a log that may lose its tail: the reader's position is its own head's record."""

from collections.abc import Iterable
from typing import NamedTuple

from tokenmill.eras.log import EraLog
from tokenmill.eras.record import ERA_KEY, Era
from tokenmill.errors import DifferenceError


class LogRecord(NamedTuple):
    """A record of the control topic."""

    offset: int
    key: bytes | None
    value: bytes | None


class EraFollower:
    """Follows the eras on a control topic, look by look.

    Each look reads from `position`, the record of the last era that was seen, that record included. If it is there,
    what comes after it continues what is known. If it is not, the broker lost its log's tail, and other records may
    stand at the same offsets: `look` says so, and `restart` reads the log from its beginning.
    """

    def __init__(self, fingerprint: bytes, stream: str) -> None:
        """Begin before the first era."""
        self._fingerprint = fingerprint
        self._stream = stream
        self._position: int | None = None
        self.log = EraLog(fingerprint)
        """The eras seen so far."""

    @property
    def position(self) -> int | None:
        """The offset from which to look; None: from the log's beginning."""
        return self._position

    def look(self, records: Iterable[LogRecord]) -> list[Era] | None:
        """Take the records from `position` to the log's end; return the new eras, or None if the log was rewritten.

        After None nothing has changed; the next call is `restart`.
        """
        if self._position is None:
            return self._take(self.log, records)
        found = iter(records)
        head = next(found, None)
        if head is None or head.offset != self._position or head.key != ERA_KEY:
            return None
        if head.value != self.log[len(self.log) - 1].pack():
            return None
        return self._take(self.log, found)

    def restart(self, records: Iterable[LogRecord]) -> list[Era]:
        """Take the whole log once more; return the new eras.

        Raises:
            DifferenceError: the last era that was seen is not on the chain that stands there now. Nothing has changed.

        """
        log = EraLog(self._fingerprint)
        known, before = len(self.log), self._position
        self._take(log, records)
        if known and (len(log) < known or log[known - 1] != self.log[known - 1]):
            self._position = before
            raise DifferenceError(
                f"era {known - 1} of {self._stream} is not on its control topic any more, which lost its tail: the "
                "topic cannot tell what was trained on since; go on from a checkpoint before that era, or give new "
                "text a stream of its own (stream_suffix)"
            )
        self.log = log
        return list(log)[known:]

    def _take(self, log: EraLog, records: Iterable[LogRecord]) -> list[Era]:
        new = []
        for record in records:
            era = log.add(record.value) if record.key == ERA_KEY else None
            if era is not None:
                self._position = record.offset
                new.append(era)
        return new
