"""Pauses between tries that grow with each failure. No clock and no sleeping: the caller waits."""


class Backoff:
    """Pauses in seconds that double from the first to the longest; from the first again after a healthy time."""

    def __init__(self, first: float, longest: float, healthy: float = float("inf")) -> None:
        """Begin with the first pause, and again with it after ``healthy`` seconds without a failure."""
        self._first, self._longest, self._healthy = first, longest, healthy
        self._next = first

    def next(self, ran: float = 0.0) -> float:
        """Return the pause after a try that failed after ``ran`` seconds; the following one is longer."""
        if ran >= self._healthy:
            self.reset()
        pause = self._next
        self._next = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Begin with the first pause again: a try succeeded."""
        self._next = self._first
