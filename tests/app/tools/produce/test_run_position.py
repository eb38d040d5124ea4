"""Where a run stands, by the marks at the ends of a topic's partitions."""

import random
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition

from tests.app.tools.produce.scripted_kafka import RAW, ScriptedKafka
from tokenmill.app.settings import Settings
from tokenmill.app.sources.items import Place
from tokenmill.app.sources.reading_order import LaneState, OrderState
from tokenmill.app.tools.produce.run_notes import (
    FIRST_TAIL,
    MARK_HEADER,
    BatchMark,
    RunCheckpoint,
    RunEnd,
    RunPosition,
    RunStart,
    SentBefore,
    encode_mark,
    has_marks,
    is_complete,
    partition_ends,
    read_position,
)
from tokenmill.errors import SourceError

RUN = "ab"
WHEN = 17
SETTINGS = Settings()


class Topic:
    """A topic of three partitions, to which a run writes that began behind five records of others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = ScriptedKafka(3, random.Random(0))
        self.kafka.install(monkeypatch)
        for number in range(3):
            self.others(number, 5)
        self.run_start = RunStart(WHEN, {0: 5, 1: 5, 2: 5}, ())

    def others(self, partition: int, count: int) -> None:
        """Write as others do; some of their headers have our name."""
        headers: Sequence[tuple[str, bytes]] = [(MARK_HEADER, b"no mark")]
        self.kafka.logs[TopicPartition(RAW, partition)].append([(None, b"", tuple(headers))] * count)

    def mark(self, partition: int, number: int, checkpoint: int = 0, *, run: str = RUN, when: int = WHEN) -> None:
        """Write a batch of the run: two records, of which the last has the mark."""
        value = encode_mark(BatchMark(run, when, number, checkpoint_of(checkpoint)))
        records = [(None, b"", ()), (None, b"", ((MARK_HEADER, value),))]
        self.kafka.logs[TopicPartition(RAW, partition)].append(records)

    async def position(self) -> RunPosition:
        """Return where the run stands."""
        return await read_position(SETTINGS, RAW, RUN, self.run_start, 2)

    async def run_end(self, numbers: dict[int, int], ends: dict[int, int]) -> bool:
        """Tell whether what was noted is still there."""
        return await is_complete(SETTINGS, RAW, RUN, self.run_start, RunEnd(numbers, ends, SentBefore()))


def checkpoint_of(number: int) -> RunCheckpoint:
    """Return a floor that is told from others."""
    return RunCheckpoint(number, OrderState(0, (LaneState(number, Place(1, 2)),)), number + 1, number + 2)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Return a topic."""
    return Topic(monkeypatch)


async def test_the_last_mark_of_each_partition_counts_and_the_furthest_place(topic: Topic) -> None:
    """A partition without marks has nothing of the run."""
    topic.mark(0, 0, 0)
    topic.mark(0, 6, 2)
    topic.mark(1, 4, 4)

    assert await topic.position() == RunPosition(checkpoint_of(4), {0: 6, 1: 4, 2: -1})


async def test_a_run_without_marks_stands_at_its_beginning(topic: Topic) -> None:
    """Behind the parts before it."""
    assert await topic.position() == RunPosition.nothing(2, 3)
    topic.run_start = topic.run_start._replace(before=SentBefore(8, 2, 1))
    assert await topic.position() == RunPosition(RunCheckpoint(8, OrderState.start(2), 2, 1), {0: 7, 1: 7, 2: 7})
    topic.mark(1, 10, 9)
    assert (await topic.position()).sent == {0: 7, 1: 10, 2: 7}


async def test_marks_of_others_are_none_of_ours(topic: Topic) -> None:
    """Of another run, of one that was started again since, and of this one before it began."""
    topic.mark(0, 1, 1)
    topic.mark(1, 100, 100, run="cd")
    topic.mark(2, 100, 100, when=WHEN - 1)
    assert await topic.position() == RunPosition(checkpoint_of(1), {0: 1, 1: -1, 2: -1})
    topic.run_start = topic.run_start._replace(offsets={0: 7, 1: 5, 2: 5})
    assert await topic.position() == RunPosition.nothing(2, 3)


@pytest.mark.parametrize("others", [1, FIRST_TAIL - 1, FIRST_TAIL, FIRST_TAIL + 1, 9 * FIRST_TAIL, 100 * FIRST_TAIL])
async def test_marks_are_found_behind_any_number_of_others(topic: Topic, others: int) -> None:
    """The last one, though an earlier one is in the same stretch."""
    topic.mark(0, 3, 1)
    topic.mark(0, 6, 4)
    topic.others(0, others)

    assert await topic.position() == RunPosition(checkpoint_of(4), {0: 6, 1: -1, 2: -1})
    topic.run_start = topic.run_start._replace(offsets={0: 9, 1: 5, 2: 5})
    assert (await topic.position()).sent[0] == -1, "before the run began"


async def test_a_mark_that_was_removed_may_have_been_there(topic: Topic) -> None:
    """What retention removed since the run began tells nothing; what it removed before does no harm."""
    topic.others(1, 50)
    topic.kafka.forget(TopicPartition(RAW, 1), 5)
    assert await topic.position() == RunPosition.nothing(2, 3)
    topic.kafka.forget(TopicPartition(RAW, 1), 6)
    with pytest.raises(SourceError, match=r"raw\[1\] no longer holds .*--restart"):
        await topic.position()
    topic.mark(1, 3, 1)
    assert (await topic.position()).sent[1] == 3


async def test_a_topic_that_ends_earlier_was_created_again(topic: Topic) -> None:
    """It cannot tell anything."""
    topic.run_start = topic.run_start._replace(offsets={0: 5, 1: 5, 2: 6})
    with pytest.raises(SourceError, match=r"raw was created again .*--restart"):
        await topic.position()


async def test_what_is_settled_is_still_there(topic: Topic) -> None:
    """All of the run's last marks, below where the partitions ended then."""
    topic.mark(0, 6)
    topic.mark(1, 4)
    numbers, ends = {0: 6, 1: 4, 2: -1}, {0: 7, 1: 7, 2: 5}
    assert await topic.run_end(numbers, ends)
    for number in range(3):
        topic.others(number, 1000)
    assert await topic.run_end(numbers, ends)
    assert not await topic.run_end({**numbers, 1: 7}, ends), "a tail was lost, and others filled it"
    assert not await topic.run_end(numbers, {**ends, 1: 6}), "the mark is not below the end"
    assert not await topic.run_end(numbers, {**ends, 2: 10_000}), "a tail was lost"
    for partition, first in ((0, 6), (1, 6), (1, 7), (1, 900), (0, 900)):
        topic.kafka.forget(TopicPartition(RAW, partition), first)
        assert await topic.run_end(numbers, ends), "retention removed some of it"


async def test_marks_among_the_last_records_are_seen(topic: Topic) -> None:
    """Whenever the run began; other runs have marks as well."""
    ends = await partition_ends(SETTINGS, RAW, 3)
    assert ends == {0: 5, 1: 5, 2: 5}
    topic.mark(2, 100, run="cd")
    assert not await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
    topic.mark(2, 3, when=1)
    topic.others(2, FIRST_TAIL - 1)
    assert await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
    topic.others(2, 1)
    assert not await has_marks(SETTINGS, RAW, await partition_ends(SETTINGS, RAW, 3), RUN)
