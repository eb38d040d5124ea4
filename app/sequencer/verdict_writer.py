"""The writer of one verdict log: one message in flight, and nothing after a hole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..kafka.clients import consumer
from ..settings import Settings
from ..worker.ending import end_process
from ..worker.sending import Send
from .domain_messages import JudgedRange, VerdictEnd
from .verdict_log import VerdictLog


@dataclass(eq=False, kw_only=True)
class VerdictWriter:
    """Sends verdicts on one raw partition; where it is not certain that they are in the log, the process ends."""

    settings: Settings
    log: VerdictLog
    """As far as its end."""
    send: Send
    leader: Callable[[], object]
    """Something that differs once the log may have another leader, or the same one after a new start."""
    _end: int = field(init=False)
    """The offset that the next message gets."""
    _verdict_end: VerdictEnd = field(init=False)
    """Of the raw partition after the last message of the log."""
    _leader: object = field(default=None, init=False)
    """Which had all that was acknowledged, the last time that it was looked."""

    def __post_init__(self) -> None:
        """Go on where the log ends."""
        self._end, self._verdict_end = self.log.end, self.log.verdict_end

    async def write(self, judged: Sequence[JudgedRange]) -> None:
        """Send verdicts, one after the other; durable when this returns."""
        for one in judged:
            offset = await self.send(*self.log.tp, one.pack(self.log.fingerprint, self._end), None, ())
            if offset != self._end:
                end_process(f"{self.log} took a message at offset {offset}, and not at {self._end}: it is read again")
            await self.check()  # of what was before: an equal message may be in its place
            self._end, self._verdict_end = offset + 1, one.after

    async def check(self) -> None:
        """End the process where the log may have another leader, and has lost what was acknowledged."""
        leader = self.leader()
        if leader == self._leader:
            return
        if self._end:
            async with consumer(self.settings) as client:
                if (lost := await self.log.lacks(client, self._end - 1, self._verdict_end)) is not None:
                    end_process(f"{self.log} {lost}: it lost its tail")
        self._leader = leader
