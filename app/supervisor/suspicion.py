"""Records that workers die of: those that were being milled at one death after the other."""

from collections.abc import Iterable

from .in_flight import Suspects


class Suspicion:
    """Remembers, for each partition, what was being milled when a worker died there."""

    def __init__(self) -> None:
        """Suspect nothing."""
        self._known: dict[tuple[str, int], Suspects] = {}

    def died(self, suspects: Iterable[Suspects]) -> list[Suspects]:
        """Take what a worker was milling when it died; return what was being milled at the death before as well.

        One death proves nothing: most are somebody's SIGKILL. A record that kills is there every time.
        """
        again = []
        for found in suspects:
            where = (found.topic, found.partition)
            before = self._known.get(where)
            common = _common(before, found) if before is not None else None
            if common is not None:
                again.append(common)
            self._known[where] = common or found
        return again


def _common(one: Suspects, other: Suspects) -> Suspects | None:
    first, last = max(one.first, other.first), min(one.last, other.last)
    return Suspects(other.topic, other.partition, first, last) if first <= last else None
