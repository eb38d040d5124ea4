"""Which eras stood on the simulated control topic at which time: what all that workers believe is held against."""

from collections.abc import Sequence

from tests.eras.judging import chain_of, read_ended, read_era
from tests.simulation.era_kafka import FINGERPRINT, Topics, hashes
from tokenmill.eras import ERA_KEY, Era


class Truth:
    """The eras after each change of the control topic."""

    def __init__(self, topics: Topics, ever: Sequence[int]) -> None:
        """Begin with none; ``ever`` are the most blocks that ever stood on each partition without a gap."""
        self.versions: list[list[bytes]] = [[]]
        self._topics = topics
        self._ever = ever

    def changed(self) -> None:
        """Note the eras that stand there now; what each says of blocks must be so, and below what ever stood there."""
        records = sorted(self._topics.control.truth.items())
        chain = chain_of((entry.value for _, entry in records if entry.key == ERA_KEY), FINGERPRINT)
        self.versions.append(chain)
        if chain:
            era = read_era(chain[-1])
            assert era is not None
            for partition, (first, stop, before, after) in enumerate(era["ranges"]):
                known = hashes(partition)
                assert (before, after) == (known[first].hex(), known[stop].hex()), "an era names another hash"
                assert stop <= self._ever[partition], "an era has blocks that never were there without a gap"

    def now(self) -> int:
        """Return the number of the control topic's state."""
        return len(self.versions) - 1

    def require_lost(self, head: Era | None, since: int, who: str) -> None:
        """Fail unless an era was missing from the topic at some time since then."""
        assert head is not None, f"{who} halted though it had seen nothing"
        found = [version for version in self.versions[since:] if head.pack() not in version]
        assert found, f"{who} halted though era {head.number}, the last that it has, stands there"

    def require_head(self, head: Era | None, since: int, who: str) -> None:
        """Fail unless this was an era of the topic at some time since then."""
        assert head is None or any(head.pack() in version for version in self.versions[since:]), (
            f"{who} takes for the last era what was none while it looked"
        )

    def require_end(self, since: int) -> None:
        """Fail unless the end marker was there at some time since then."""
        assert any(version and read_ended(version[-1]) for version in self.versions[since:]), (
            "a stream counts as closed that has no end marker"
        )

    def require_chain(self, eras: Sequence[Era], since: int, who: str) -> None:
        """Fail unless these were the first eras of the topic at some time since then."""
        values = [era.pack() for era in eras]
        assert any(version[: len(values)] == values for version in self.versions[since:]), (
            f"{who} sees other eras than the topic held while it looked"
        )
