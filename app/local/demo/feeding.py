"""The demo's text on its way into the raw topic, and the kill in the middle."""

import os
import signal
from collections.abc import Callable
from typing import Final

from ...settings import Settings
from ...supervisor import Status
from ...tools.produce import GivenSource, Plan, Summary, flush, produce, shape_for
from ..live import View
from .plan import DemoPlan

KILL_AT: Final = 0.4
"""Share of the text after which a worker is killed: early enough to see it come back before the text ends."""


class Feeding:
    """Feeds once; `killed` counts the workers that were killed meanwhile."""

    def __init__(self, plan: DemoPlan, settings: Settings, view: View, look: Callable[[], Status]) -> None:
        """Feed nothing yet."""
        self.killed = 0
        self.share = 0.0
        """How much of the text is in Kafka, 0 to 1."""
        self._plan = plan
        self._settings = settings
        self._view = view
        self._look = look

    async def run(self) -> None:
        """Send all of the text, and a flush behind it; on return all of it is acknowledged by Kafka."""
        topic, text, rate = self._settings.raw_topics[0], self._plan.text, self._plan.bytes_per_second
        self._view.say(f"feeding {topic} with {rate / 1e6:.2f} MB/s, for {text.bytes / rate:.0f} s")
        items = text.items(shape_for(self._settings, topic))
        done = await produce(self._settings, topic, [GivenSource(items)], Plan(rate=rate), self._progress)
        if not self.killed:
            self._kill()
        self.share = 1.0
        passed = f"; {done.refused:,} that are no UTF-8 text were passed over" if done.refused else ""
        self._view.say(f"fed {done.documents:,} documents, {done.bytes / 1e6:,.1f} MB{passed}; now a flush")
        await flush(self._settings, topic)

    def _progress(self, summary: Summary) -> None:
        self.share = min(1.0, summary.bytes / max(1, self._plan.text.bytes))
        if self.share >= KILL_AT and not self.killed:
            self._kill()

    def _kill(self) -> None:
        """Kill a mill worker that has work, if another one can take it over."""
        mills = [mill for mill in self._look().workers if mill.role == "mill" and mill.partitions]
        if len(mills) > 1 and (pid := mills[0].pid) is not None:
            self.killed += 1
            self._view.say(f"kill -9 {pid}: that was {mills[0].name}, in the middle of its work", "bold red")
            os.kill(pid, signal.SIGKILL)
