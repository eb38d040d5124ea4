"""What a call of produce sends next: a new run, the rest of an interrupted one, or what its sources got since.

A run is sent in parts: first everything that its sources hold, and then, each time that ``--only-new`` asks for it, the
files and lines that were added since. Each part has an order of its own, and begins when all of the part before it is
in the log. The documents are numbered continuously through all parts.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer

from tokenmill.documents import MAX_TEXT_BYTES
from tokenmill.errors import InputError, SourceError

from ...kafka.retry import retry
from ...settings import Settings, produced_topic
from ...sources.items import DocumentSource
from ...sources.reading_order import OrderState
from ...sources.source_changes import (
    KnownSource,
    SourceChange,
    SourceComparison,
    changes_line,
    compare_sources,
    look_at_sources,
    sources_to_send,
)
from .run_notes import (
    NOTHING_BEFORE,
    ORDER,
    RunEnd,
    RunPosition,
    RunStart,
    SentBefore,
    has_marks,
    is_complete,
    partition_ends,
    read_note,
    read_position,
    settle_note,
    write_note,
)

SETTLE_SECONDS: Final = 60.0
"""How long the end of a part waits for a broker that is away: all is acknowledged, only the note of it is missing."""
ADVICE: Final = "--restart sends all documents again"


class NextPart(NamedTuple):
    """The part of a run that is to be sent."""

    run_start: RunStart
    position: RunPosition
    sources: list[DocumentSource]
    more: bool
    """Whether there is something new to send after it."""
    left_out: list[SourceChange]
    """How sources have changed that were sent, and are not sent again."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """Finds the next part of a run of which this process is the only writer (`fenced_producer`)."""

    settings: Settings
    client: AIOKafkaProducer
    topic: str
    run: str
    sources: Sequence[DocumentSource]
    """As they are now."""
    only_new: bool = False
    """Also send what is new since the run began."""

    @property
    def _order(self) -> str:
        """How a part orders documents: the limit of texts decides which of them have a number."""
        limit = self.settings.for_topic(self.topic).limits.max_text_bytes
        return ORDER if limit == MAX_TEXT_BYTES else f"{ORDER} {limit}"

    async def next_part(self, partitions: int, *, restart: bool = False) -> NextPart:
        """Return the part that is to be sent; on return a new one is noted on Kafka.

        Raises InputError where a source has changed, so that the run cannot continue; and SourceError where the topic
        no longer holds what says where the run continues.
        """
        run_start = None if restart else await read_note(self.settings, self.topic, self.run)
        if run_start is None:
            if not restart:
                await self._require_no_marks(partitions)
            looks = await asyncio.to_thread(look_at_sources, self.sources, whole_lines=self.only_new)
            return await self._begin(partitions, [one.seen for one in looks])
        if len(run_start.offsets) > partitions:
            raise SourceError(f"{self.topic} was created again, with fewer partitions, since this run began: {ADVICE}")
        if run_start.order != self._order:
            raise InputError(
                "this run began with another limit of texts (max_text_bytes, or another tokenizer), or with a version "
                f"that orders documents in another way: set the limit back, or {ADVICE}"
            )
        looks = await asyncio.to_thread(look_at_sources, self.sources, run_start.sources, whole_lines=self.only_new)
        found = compare_sources(run_start.sources, looks)
        if found.changes and not self.only_new:
            raise InputError(
                f"since this run began, its sources have changed: {changes_line(found.changes)}. {_advice(found)}"
            )
        if run_start.run_end is not None and await is_complete(
            self.settings, self.topic, self.run, run_start, run_start.run_end
        ):
            return await self._following(partitions, run_start, run_start.run_end, found)
        run_start = run_start._replace(run_end=None)
        count = sum(seen.sent_now for seen in run_start.sources)
        position = await read_position(self.settings, self.topic, self.run, run_start, count)
        _require_unsent(run_start.sources, position.checkpoint.state, found)
        return NextPart(
            run_start, position, sources_to_send(run_start.sources, self.sources), bool(found.of("new", "grown")), []
        )

    async def settle(self, run_start: RunStart, numbers: dict[int, int], after: SentBefore) -> None:
        """Note that all of a part is in the log. Waits for a broker that is away, as sending does."""
        wait = max(self.settings.wait_seconds, SETTLE_SECONDS)
        waiting = self.settings.model_copy(update={"wait_seconds": wait})
        ends = await retry(waiting, lambda: partition_ends(self.settings, self.topic, len(run_start.offsets)))
        settled = run_start._replace(run_end=RunEnd(numbers, ends, after))
        await settle_note(self.client, self.topic, self.run, settled)

    async def _begin(
        self,
        partitions: int,
        present: Sequence[KnownSource],
        before: SentBefore = NOTHING_BEFORE,
        earlier: RunStart | None = None,
        left_out: Sequence[SourceChange] = (),
    ) -> NextPart:
        ends = await partition_ends(self.settings, self.topic, partitions)
        now = time.time_ns() // 1_000_000
        started = max(now, earlier.started_ms + 1 if earlier is not None else 0)
        run_start = RunStart(started, ends, tuple(present), before, self._order)
        await write_note(self.client, self.topic, self.run, run_start, earlier)
        sources = sources_to_send(present, self.sources)
        position = RunPosition.nothing(len(sources), partitions, before)
        return NextPart(run_start, position, sources, more=False, left_out=list(left_out))

    async def _following(
        self, partitions: int, run_start: RunStart, run_end: RunEnd, found: SourceComparison
    ) -> NextPart:
        """Return the part that follows one of which all is in the log: what is new, or nothing."""
        left_out = found.of("changed", "gone", "renamed")
        if any(seen.sent_now for seen in found.present):
            return await self._begin(partitions, found.present, run_end.after, run_start, left_out)
        position = RunPosition.nothing(0, len(run_start.offsets), run_end.after)
        return NextPart(run_start, position, [], more=False, left_out=left_out)

    async def _require_no_marks(self, partitions: int) -> None:
        ends = await partition_ends(self.settings, self.topic, partitions)
        if await has_marks(self.settings, self.topic, ends, self.run):
            raise SourceError(
                f"{produced_topic(self.topic)} does not say when this run began, and {self.topic} holds documents of "
                f"it: {ADVICE}"
            )


def _advice(found: SourceComparison) -> str:
    if found.of("new", "grown", "renamed", "gone"):
        left = "; what has changed stays as it was sent" if found.of("changed") else ""
        return f"--only-new sends new files, and what files of lines have got{left}. {ADVICE}"
    return f"To send what you changed, name a file of its own. {ADVICE}"


def _require_unsent(known: Sequence[KnownSource], state: OrderState, found: SourceComparison) -> None:
    """Check that the sources of which the part has still something to send are unchanged.

    Raises InputError where one of them has changed, or is gone.
    """
    lost = {change.name: change for change in found.of("changed", "gone")}
    sent_now = [seen.name for seen in known if seen.sent_now]
    waiting = {name for number, name in enumerate(sent_now) if number >= state.lanes[number % len(state.lanes)].file}
    there = {seen.name for seen in found.present}
    named = [lost[name] for name in waiting if name in lost]
    named += [change for change in found.of("renamed") if not waiting <= there]
    if named:
        raise InputError(
            f"this run was interrupted, and a source of its rest is not what it was: {changes_line(named)}. Put it "
            f"back, and the same command goes on; or {ADVICE}"
        )
