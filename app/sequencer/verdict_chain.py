"""Which verdicts on a raw partition count: those that continue each other. The same for all who read them. Pure."""

from collections import deque
from typing import Final

from tokenmill.errors import DifferenceError

from .domain_messages import JudgedRange, VerdictEnd

REMEMBERED: Final = 1024
"""Ends of ranges that are remembered, to be compared with what comes again: far more than a writer has on its way."""
TWO_HISTORIES: Final = (
    "the verdicts hold two histories, as when the signature log lost acknowledged messages: begin a new domain with a "
    "new stream_suffix"
)


class VerdictChain:
    """The verdicts on one raw partition, in their order."""

    def __init__(self, verdict_end: VerdictEnd | None = None) -> None:
        """Go on where a partition stands; None: where the first verdict that comes begins."""
        self.verdict_end = verdict_end
        self._ends: deque[VerdictEnd] = deque([] if verdict_end is None else [verdict_end], maxlen=REMEMBERED)

    def offer(self, judged: JudgedRange) -> bool:
        """Take the next verdict of the log, and return whether it counts: it is not known, nor behind a hole.

        Raises DifferenceError where another history stands there.
        """
        verdict_end = self.verdict_end if self.verdict_end is not None else VerdictEnd(judged.begin, judged.before)
        after = judged.after
        if judged.begin > verdict_end.next_offset:
            return False
        if after.next_offset <= verdict_end.next_offset:
            if self._ends and after.next_offset >= self._ends[0].next_offset and after not in self._ends:
                raise DifferenceError(TWO_HISTORIES)
            return False
        if (judged.begin, judged.before) != verdict_end:
            raise DifferenceError(TWO_HISTORIES)
        self.verdict_end = after
        self._ends.append(after)
        return True
