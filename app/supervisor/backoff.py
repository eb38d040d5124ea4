"""How long to wait before a worker is started again."""

from .limits import Limits


class Backoff:
    """Doubles from the first pause to the longest; back to the first after a healthy life."""

    def __init__(self, limits: Limits) -> None:
        """Begin with the first pause."""
        self._limits = limits
        self._next = limits.first_backoff

    def after(self, lived: float) -> float:
        """Return the pause in seconds after a worker that lived for ``lived`` seconds."""
        if lived >= self._limits.healthy:
            self._next = self._limits.first_backoff
        pause = self._next
        self._next = min(2 * pause, self._limits.longest_backoff)
        return pause
