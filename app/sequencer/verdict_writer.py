"""The writer of one verdict log: one message in flight, and nothing after a hole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from ..kafka.clients import consumer
from ..settings import Domain, Settings
from ..worker.ending import end_process
from ..worker.sending import Send
from .domain_messages import JudgedRange, VerdictEnd, domain_fingerprint
from .verdict_log import VerdictLog


@dataclass(eq=False, kw_only=True)
class VerdictWriter:
    """Sends verdicts on one raw partition; where it is not certain that they are in the log, the process ends."""

    settings: Settings
    verdicts: TopicPartition
    domain: Domain
    send: Send
    leader: Callable[[], object]
    """Something that differs once the log may have another leader, or the same one after a new start."""
    end: int
    """The offset that the next message gets."""
    verdict_end: VerdictEnd
    """Of the raw partition after the last message of the log."""
    _leader: object = field(default=None, init=False)
    """Which had all that was acknowledged, the last time that it was looked."""

    async def write(self, judged: Sequence[JudgedRange]) -> None:
        """Send verdicts, one after the other; durable when this returns."""
        fingerprint = domain_fingerprint(self.domain)
        for one in judged:
            topic, partition = self.verdicts
            offset = await self.send(topic, partition, one.pack(fingerprint, self.end), None, ())
            if offset != self.end:
                end_process(f"{self._name} took a message at offset {offset}, and not at {self.end}: it is read again")
            await self.check()  # of what was before: an equal message may be in its place
            self.end, self.verdict_end = offset + 1, one.after

    async def check(self) -> None:
        """End the process where the log may have another leader, and has lost what was acknowledged."""
        leader = self.leader()
        if leader == self._leader:
            return
        if self.end:
            async with consumer(self.settings) as client:
                log = VerdictLog(self.domain, self.verdicts)
                if (lost := await log.lacks(client, self.end - 1, self.verdict_end)) is not None:
                    end_process(f"{self._name} {lost}: it lost its tail")
        self._leader = leader

    @property
    def _name(self) -> str:
        return f"{self.verdicts.topic}[{self.verdicts.partition}]"
