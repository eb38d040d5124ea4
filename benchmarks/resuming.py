"""What workers do with a partition that they were assigned, up to the moment when it flows."""

import asyncio
from typing import Any

from faust.types import TP

from benchmarks.grown import Grown
from benchmarks.measuring import BenchmarkError
from tokenmill.app.kafka.topics import JOINED_BYTES, Existing
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.mill.recipes import MillContext
from tokenmill.app.mill.topic_changes import SkipList
from tokenmill.app.segments.token_partition import SegmentContext, TokenPartition
from tokenmill.app.worker.ending import end_for


async def resume_mill(grown: Grown) -> None:
    """Find the chain's place at the end of the token topic. Raises `BenchmarkError` when it is not found there."""
    context = MillContext(
        settings=grown.settings,
        stages=grown.stages,
        streams=[grown.settled],
        skip_list=SkipList(grown.settings, [grown.settled]),
        token_topics={grown.settled.stream.tokens_topic: Existing(1, {"max.message.bytes": str(JOINED_BYTES)})},
        letter_bytes={},
        require_partition=_there,
        send=_no_send,
        partitions=_one,
        leader=lambda _tp: None,
        start_partition=_started,
        set_durable=lambda _tp, _offset: None,
    )
    partition = RawPartition(TP(grown.settled.stream.raw_topic, 0), context)
    await partition.resume()
    partition.stop()
    # The last document may reach beyond the last block, so the place is at most one document before the end.
    if partition.halted or not grown.records - 1 <= partition.position <= grown.records:
        raise BenchmarkError(f"resumed at {partition.position} of {grown.records}: {partition.halted}")


async def _one(_topic: str) -> int:
    return 1


async def resume_segments(grown: Grown) -> None:
    """Lock and recover the directory, and find its place in the token topic. Raises `BenchmarkError` when it is not."""
    found: list[int] = []

    async def started(_tp: TP, offset: int) -> int:
        found.append(offset)
        return 1

    context = SegmentContext(
        settings=grown.settings,
        store=grown.store,
        stream=grown.settled.stream.name,
        recipe=grown.settled.genesis.recipe,
        ignored=grown.settled.control.ignored,
        start_partition=started,
        set_durable=lambda _tp, _offset: None,
        end_offset=lambda _tp: grown.messages,
        fail=end_for,
    )
    partition = TokenPartition(TP(grown.settled.stream.tokens_topic, 0), context)
    await partition.resume()
    partition.stop()
    await asyncio.sleep(0)  # it closes in the background
    if partition.halted or found != [grown.messages - 1]:
        raise BenchmarkError(f"resumed at {found} of {grown.messages} messages: {partition.halted}")


async def _there(_partition: int) -> None:
    return


async def _started(_tp: TP, _offset: int) -> int:
    return 1


async def _no_send(*_: Any, **__: Any) -> int:
    raise BenchmarkError("nothing is to be sent here")
