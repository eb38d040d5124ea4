"""One partition's check, in this process: up to where it says that all is right."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.tools.verify.published import Published, settled
from tests.conftest import TopicFactory
from tokenmill.app.kafka.settled_streams import settled_stream
from tokenmill.app.local.broker import Broker
from tokenmill.app.tools.verify.marks import take_marks
from tokenmill.app.tools.verify.partition import check_partition
from tokenmill.app.tools.verify.result import ChainResult
from tokenmill.app.tools.verify.task import ChainTask, PartitionTask, Sample
from tokenmill.store.layout import SegmentPaths
from tokenmill.wire.message import Message


async def checked(published: Published, store: Path | None) -> ChainResult:
    """Verify the first stream's only chain."""
    found = await settled_stream(published.settings, published.names[0])
    (marks,) = (await take_marks(published.settings, [found], store)).chains
    chain = ChainTask(found.genesis, found.stream.tokens_topic, marks, found.control.ignored)
    task = PartitionTask(published.settings, None, frozenset(), [chain], store, Sample(1))
    (result,) = await check_partition(task, lambda _: published.plan.stages, lambda _: None)
    return result


def miscounted(message: Message) -> Message:
    """Return the message with a tombstone too many in its account."""
    totals = message.totals.copy()
    totals.tombstones += 1
    return replace(message, totals=totals)


@pytest.mark.parametrize("wrong", ["nothing", "store", "topic"])
async def test_a_side_that_was_wrong_is_not_remembered_as_right(
    broker: Broker, topic: TopicFactory, tmp_path: Path, wrong: str
) -> None:
    """Not even in the last block, behind which nothing is left to be compared."""
    published = settled(broker, topic, tmp_path)
    name = published.names[0]
    messages = [message for message in published.messages(name, 256) if not message.is_carry]
    store = published.store({name: messages})
    if wrong == "store":
        paths = SegmentPaths(store / name / "0", 0)
        (last,) = sorted(paths.directory.glob("*.bin"))[-1:]
        data = bytearray(last.read_bytes())
        data[-1] ^= 1
        last.write_bytes(data)
    if wrong == "topic":
        messages[-1] = miscounted(messages[-1])
    published.publish(name, messages)

    result = await checked(published, store)

    assert [difference.side for difference in result.differences] == ([] if wrong == "nothing" else [wrong])
    assert result.reference_blocks == result.topic_blocks[1] == messages[-1].end
    if wrong == "nothing":
        assert result.verified is not None
        assert result.verified.carry.first == result.reference_blocks
    else:
        assert result.verified is None


async def test_what_is_not_stored_yet_is_not_remembered(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A store that is behind is no difference, but the next verification must look at these blocks."""
    published = settled(broker, topic, tmp_path)
    name = published.names[0]
    messages = [message for message in published.messages(name, 256) if not message.is_carry]
    published.publish(name, messages)
    store = published.store({name: messages[:-1]})

    result = await checked(published, store)

    assert (result.differences, result.verified) == ([], None)
    assert (await checked(published, None)).verified is not None
