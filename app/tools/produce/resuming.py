"""Whether a run is new, where it goes on if it is not, and what of its sources is new since.

A run is sent in parts: first all that its sources held, and, each time that somebody asks for what is new, the files
and lines that came since. Each part has an order of its own, and begins when all of the one before is in the log; the
documents are numbered on through all of them.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer

from tokenmill.errors import InputError, SourceError

from ...kafka.retry import retry
from ...settings import Settings, produced_topic
from .known import Change, Comparison, Seen, compare, look, parts, told
from .order import State
from .register import NOTHING, ORDER, Before, Begun, Register, Settled
from .sources import Source
from .tails import Standing, has_marks, is_settled, partition_ends, read_standing

SETTLE_SECONDS: Final = 60.0
"""How long the end of a part waits for a broker that has gone: all is acknowledged, only the note of it is to come."""
ADVICE: Final = "--restart sends all documents again"


class Taken(NamedTuple):
    """A part of a run that is to go on, or to begin."""

    begun: Begun
    standing: Standing
    sources: list[Source]
    """What the part sends."""
    more: bool
    """Whether there is something new to send behind it."""
    left_out: list[Change]
    """What has become of sources that were sent, and are not sent again."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """Takes up the parts of a run, for which nobody else writes (`tokenmill.app.tools.produce.fence`)."""

    settings: Settings
    client: AIOKafkaProducer
    topic: str
    run: str
    sources: Sequence[Source]
    """As they are now."""
    only_new: bool = False
    """Also send what is new since the run began."""

    @property
    def _register(self) -> Register:
        return Register(self.settings, self.topic, self.run)

    async def take_up(self, partitions: int, *, restart: bool = False) -> Taken:
        """Return the part that is to be sent; one that is new is noted.

        Raises:
            InputError: a source is not what it was, and that cannot be told from what is in the topic.
            SourceError: the topic no longer tells where the run stands.

        """
        begun = None if restart else await self._register.read()
        if begun is None:
            if not restart:
                await self._require_no_marks(partitions)
            looks = await asyncio.to_thread(look, self.sources, whole_lines=self.only_new)
            return await self._begin(partitions, [one.seen for one in looks])
        if len(begun.offsets) > partitions:
            raise SourceError(f"{self.topic} was made anew, with fewer partitions, since this run began: {ADVICE}")
        if begun.order != ORDER:
            raise InputError(f"this program orders documents otherwise than the one that began this run: {ADVICE}")
        looks = await asyncio.to_thread(look, self.sources, begun.sources, whole_lines=self.only_new)
        found = compare(begun.sources, looks)
        if found.changes and not self.only_new:
            raise InputError(f"since this run began, its sources have changed: {told(found.changes)}. {_advice(found)}")
        if begun.settled is not None and await is_settled(self.settings, self.topic, self.run, begun, begun.settled):
            return await self._behind(partitions, begun, begun.settled, found)
        begun = begun._replace(settled=None)
        standing = await self._standing(begun)
        _require_unsent(begun.sources, standing.floor.state, found)
        return Taken(begun, standing, parts(begun.sources, self.sources), bool(found.of("new", "grown")), [])

    async def settle(self, begun: Begun, numbers: dict[int, int], after: Before) -> None:
        """Note that all of a part is in the log; a broker that is away meanwhile is waited for, as sending does."""
        wait = max(self.settings.wait_seconds, SETTLE_SECONDS)
        waiting = self.settings.model_copy(update={"wait_seconds": wait})
        ends = await retry(waiting, lambda: partition_ends(self.settings, self.topic, len(begun.offsets)))
        await self._register.settle(self.client, begun._replace(settled=Settled(numbers, ends, after)))

    async def _begin(
        self,
        partitions: int,
        present: Sequence[Seen],
        before: Before = NOTHING,
        earlier: Begun | None = None,
        left_out: Sequence[Change] = (),
    ) -> Taken:
        ends = await partition_ends(self.settings, self.topic, partitions)
        now = time.time_ns() // 1_000_000
        begun = Begun(max(now, earlier.milliseconds + 1 if earlier is not None else 0), ends, tuple(present), before)
        await self._register.write(self.client, begun, earlier)
        sources = parts(present, self.sources)
        standing = Standing.nothing(len(sources), partitions, before)
        return Taken(begun, standing, sources, more=False, left_out=list(left_out))

    async def _behind(self, partitions: int, begun: Begun, settled: Settled, found: Comparison) -> Taken:
        """Return what comes behind a part of which all is in the log: what is new, or nothing."""
        left_out = found.of("changed", "gone", "renamed")
        if any(seen.sent_now for seen in found.present):
            return await self._begin(partitions, found.present, settled.after, begun, left_out)
        standing = Standing.nothing(0, len(begun.offsets), settled.after)
        return Taken(begun, standing, [], more=False, left_out=left_out)

    async def _standing(self, begun: Begun) -> Standing:
        count = sum(seen.sent_now for seen in begun.sources)
        return await read_standing(self.settings, self.topic, self.run, begun, count)

    async def _require_no_marks(self, partitions: int) -> None:
        ends = await partition_ends(self.settings, self.topic, partitions)
        if await has_marks(self.settings, self.topic, ends, self.run):
            raise SourceError(
                f"{produced_topic(self.topic)} does not say when this run began, and {self.topic} holds documents of "
                f"it: {ADVICE}"
            )


def _advice(found: Comparison) -> str:
    if found.of("new", "grown", "renamed", "gone"):
        left = "; what has changed stays as it was sent" if found.of("changed") else ""
        return f"--only-new sends new files, and what files of lines have got{left}. {ADVICE}"
    return f"To send what you changed, name a file of its own. {ADVICE}"


def _require_unsent(known: Sequence[Seen], state: State, found: Comparison) -> None:
    """Check that each source is there as it was that the part has not been through.

    Raises:
        InputError: one is not.

    """
    lost = {change.name: change for change in found.of("changed", "gone")}
    sent_now = [seen.name for seen in known if seen.sent_now]
    waiting = {name for number, name in enumerate(sent_now) if number >= state.lanes[number % len(state.lanes)].file}
    there = {seen.name for seen in found.present}
    named = [lost[name] for name in waiting if name in lost]
    named += [change for change in found.of("renamed") if not waiting <= there]
    if named:
        raise InputError(
            f"this run was interrupted, and what is left of it is no more what it was: {told(named)}. Put it back, and "
            f"the same command goes on; or {ADVICE}"
        )
