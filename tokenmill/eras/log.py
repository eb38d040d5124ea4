"""The chain of eras in a log: the first record that continues it is the next era, every other is ignored."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tokenmill.chain import genesis_hash
from tokenmill.eras.record import Era, first_hash


class End(NamedTuple):
    """Where the eras so far leave a partition."""

    block: int
    """The block with which the next era continues."""
    hash: bytes
    """The chain hash before that block."""


class EraLog:
    """All eras of a stream so far, in order; `add` takes the log's records one after the other.

    Several writers may believe that it is their turn. Which of their records counts is decided by the log alone, so all
    readers of one log agree: a record counts if it names the hash of the era before, continues each partition where the
    eras before left it, block and chain hash, and no end marker stands before it. Its place in the log does not matter:
    after the log lost an era, a live writer's next one continues nothing and is ignored.
    """

    def __init__(self, fingerprint: bytes) -> None:
        """Begin before era 0 of the stream with this fingerprint."""
        self._fingerprint: Final = fingerprint
        self._ends: dict[int, End] = {}
        self._eras: list[Era] = []
        self._head = first_hash(fingerprint)

    def __len__(self) -> int:
        return len(self._eras)

    def __iter__(self) -> Iterator[Era]:
        return iter(self._eras)

    def __getitem__(self, number: int) -> Era:
        """Return era ``number``, from 0."""
        return self._eras[number]

    @property
    def head(self) -> bytes:
        """The hash that the next era must name."""
        return self._head

    @property
    def ended(self) -> bool:
        """Whether the last era is the end marker: nothing will follow."""
        return bool(self._eras) and self._eras[-1].end

    @property
    def ends(self) -> Mapping[int, End]:
        """Where the eras leave each partition that they have met."""
        return self._ends

    def end(self, partition: int) -> End:
        """Return where a partition's next range must begin: a partition that no era has met yet, at block 0."""
        return self._ends.get(partition) or End(0, genesis_hash(self._fingerprint, partition))

    def add(self, value: bytes | None) -> Era | None:
        """Take the value of the next record whose key is `ERA_KEY`; return the era if it is one, None if ignored."""
        try:
            era = Era.unpack(value or b"")
        except ValueError:
            return None
        if not self.continues(era):
            return None
        self._eras.append(era)
        self._head = era.hash
        for part in era.ranges:
            self._ends[part.partition] = End(part.stop, part.after)
        return era

    def continues(self, era: Era) -> bool:
        """Return whether a sound record is the next era."""
        return (
            not self.ended
            and era.number == len(self._eras)
            and era.before == self._head
            and all(self.end(part.partition) == (part.first, part.before) for part in era.ranges)
        )
