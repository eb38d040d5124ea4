"""The chain of eras in a log: the first record that continues it is the next era, every other is ignored."""

from typing import Final

from tokenmill.eras.record import Era, EraRange, first_hash
from tokenmill.wire.chain import genesis_hash


class EraLog:
    """The chain of eras of a stream: `add` takes the log's records in order. Holds only the last era.

    Several writers may believe that it is their turn. The log alone decides which of their records count, so all
    readers of one log agree. A record counts if it names the hash of the era before, continues each partition at the
    block and chain hash where that era ended, and follows no end marker. Its place in the log does not matter: after
    the log lost an era, a live writer's next one continues nothing and is ignored.
    """

    def __init__(self, fingerprint: bytes, last: Era | None = None) -> None:
        """Begin after era ``last`` of the stream with this fingerprint; None: before era 0."""
        self.fingerprint: Final = fingerprint
        self.last = last
        """The last era, None before the first."""
        self._head = first_hash(fingerprint) if last is None else last.hash

    @property
    def next_number(self) -> int:
        """The number of the next era."""
        return 0 if self.last is None else self.last.number + 1

    @property
    def head(self) -> bytes:
        """The hash that the next era must name."""
        return self._head

    @property
    def ended(self) -> bool:
        """Whether the last era is the end marker: nothing will follow."""
        return self.last is not None and self.last.end

    @property
    def partitions(self) -> int:
        """Number of partitions in the eras so far."""
        return 0 if self.last is None else len(self.last.ranges)

    def end(self, partition: int) -> tuple[int, bytes]:
        """Return the block, and the chain hash before it, with which a partition's next range begins.

        A partition that is in no era yet begins at block 0.
        """
        if self.last is None or partition >= self.partitions:
            return 0, genesis_hash(self.fingerprint, partition)
        found: EraRange = self.last.ranges[partition]
        return found.stop, found.after

    def add(self, value: bytes | None) -> Era | None:
        """Take the value of the next record with key `ERA_KEY`; return the era, or None if it is ignored."""
        try:
            era = Era.unpack(value or b"")
        except ValueError:
            return None
        if not self.continues(era):
            return None
        self.last = era
        self._head = era.hash
        return era

    def continues(self, era: Era) -> bool:
        """Return whether a valid era is the next one of this chain."""
        return (
            not self.ended
            and era.number == self.next_number
            and era.before == self._head
            and len(era.ranges) >= self.partitions
            and all(self.end(number) == (part.first, part.before) for number, part in enumerate(era.ranges))
        )
