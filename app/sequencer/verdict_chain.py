"""Which verdicts on a raw partition count: those that continue each other. The same for all who read them. Pure."""

from collections import deque
from typing import Final

from tokenmill.errors import DifferenceError

from .domain_messages import JudgedRange, Standing

REMEMBERED: Final = 1024
"""Ends of ranges that are remembered, to be compared with what comes again: far more than a writer has on its way."""
TWO_HISTORIES: Final = (
    "the verdicts hold two histories, as when the signature log lost acknowledged messages: begin a new domain with a "
    "new stream_suffix"
)


class VerdictChain:
    """The verdicts on one raw partition, in their order."""

    def __init__(self, standing: Standing | None = None) -> None:
        """Go on where a partition stands; None: where the first verdict that comes begins."""
        self.standing = standing
        self._ends: deque[Standing] = deque([] if standing is None else [standing], maxlen=REMEMBERED)

    @property
    def next_offset(self) -> int:
        """The raw offset up to which the partition is judged."""
        return 0 if self.standing is None else self.standing.next_offset

    def offer(self, judged: JudgedRange) -> bool:
        """Take the next verdict of the log, and return whether it counts: it is not known, nor behind a hole.

        Raises DifferenceError where another history stands there.
        """
        standing = self.standing if self.standing is not None else Standing(judged.begin, judged.before)
        after = judged.after
        if judged.begin > standing.next_offset:
            return False
        if after.next_offset <= standing.next_offset:
            if self._ends and after.next_offset >= self._ends[0].next_offset and after not in self._ends:
                raise DifferenceError(TWO_HISTORIES)
            return False
        if (judged.begin, judged.before) != standing:
            raise DifferenceError(TWO_HISTORIES)
        self.standing = after
        self._ends.append(after)
        return True
