"""Closing eras on a real control topic: what is taken, who wins, and the end."""

import asyncio
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.milled import publish
from tests.service import Raw, Service, in_own_loop, make_anew, reference_blocks, send, service_settings
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_topic import Settled, read_eras, settle, settled_stream, write_control
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.era_closing import EraCloser
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.eras import Era, EraFollower
from tokenmill.errors import DifferenceError
from tokenmill.store import open_partition
from tokenmill.wire.chain import genesis_hash

NEVER = 3600.0


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    """Make a raw topic of three partitions whose mills leave the eras to the test."""
    return service_settings(broker, topic(3), tmp_path, splits={"all": 1000}, era_blocks=10**6, era_max_seconds=NEVER)


def documents(count: int) -> list[Raw]:
    """Return so many documents, for three partitions."""
    return [Raw(b"a document of some length, and some more of it " * 4, n % 3) for n in range(count)]


def mill(settings: Settings, count: int) -> int:
    """Put the blocks of that many documents on the token topic, as a mill would; return how many there are.

    No worker does it: what closes eras sees what is on the topics, and nothing else.
    """
    send(settings, documents(count))
    plan = plan_topic(settings, settings.raw_topics[0])
    ((stream, recipe),) = plan.recipes.items()
    in_own_loop(lambda: settle(settings, stream, recipe, plan.tokenizer.content))
    chains = reference_blocks(settings)
    for (_, number), blocks in chains.items():
        before = genesis_hash(recipe.fingerprint, number)
        publish(settings, stream.tokens_topic, recipe.fingerprint, blocks, before, partition=number)
    return sum(map(len, chains.values()))


async def settled(settings: Settings) -> Settled:
    """Return the one stream."""
    (stream,) = settings.streams()
    return await settled_stream(settings, stream.name)


def closer(settings: Settings, found: Settled, *, blocks: int = 1, seconds: float = NEVER) -> EraCloser:
    """Return a writer of the stream's eras."""

    async def write(topic: str, key: bytes, value: bytes) -> None:
        await write_control(settings, topic, [(key, value)])

    return EraCloser(found, write, era_blocks=blocks, era_seconds=seconds)


async def eras(settings: Settings, found: Settled) -> list[Era]:
    """Return the eras on the control topic."""
    async with consumer(settings) as client:
        follower = EraFollower(found.stream.name, found.genesis.recipe.fingerprint)
        return [era async for part in read_eras(client, found.stream.control_topic, follower) for era, _ in part]


@pytest.mark.needs("minutes")
@pytest.mark.slow
async def test_an_era_takes_all_new_blocks_and_the_next_one_continues(settings: Settings, tmp_path: Path) -> None:
    """Of all partitions, up to the last block that is there; the chain hashes are the store's."""

    def more(service: Service, count: int) -> list[int]:
        send(settings, documents(count))
        return [len(blocks) for blocks in service.wait_until_complete().values()]

    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        first = await asyncio.to_thread(more, service, 60)
        found = await settled(settings)
        one = closer(settings, found)
        async with consumer(settings) as client:
            assert await one.step(client) is not None
            assert await one.step(client) is None
            second = await asyncio.to_thread(more, service, 30)
            assert await one.step(client) is not None
    before, after = await eras(settings, found)
    assert [(part.first, part.stop) for part in before.ranges] == [(0, blocks) for blocks in first]
    assert [(part.first, part.stop) for part in after.ranges] == list(zip(first, second, strict=True))
    for number, part in enumerate(after.ranges):
        reader = open_partition(settings.store, found.stream.name, number)
        assert (part.before, part.after) == (reader.chain_before(part.first), reader.chain_before(part.stop))


@pytest.mark.slow
async def test_an_era_waits_for_its_blocks_or_its_time(settings: Settings) -> None:
    """Too few blocks are no era until the time is over."""
    blocks = mill(settings, 60)
    found = await settled(settings)
    async with consumer(settings) as client:
        assert await closer(settings, found, blocks=blocks + 1).step(client) is None
        late = closer(settings, found, blocks=blocks + 1, seconds=0.2)
        assert await late.step(client) is None
        await asyncio.sleep(0.3)
        assert await late.step(client) is not None
    assert [era.blocks for era in await eras(settings, found)] == [blocks]


@pytest.mark.slow
async def test_of_two_writers_at_once_one_counts(settings: Settings) -> None:
    """Both find the same era due and write it; readers see one, and both writers go on after it."""
    mill(settings, 60)
    found = await settled(settings)
    both_are_ready = asyncio.Barrier(2)

    async def write(topic: str, key: bytes, value: bytes) -> None:
        await both_are_ready.wait()
        await write_control(settings, topic, [(key, value)])

    writers = [EraCloser(found, write, era_blocks=1, era_seconds=NEVER) for _ in range(2)]
    async with consumer(settings) as here, consumer(settings) as there:
        written = await asyncio.gather(*(w.step(c) for w, c in zip(writers, (here, there), strict=True)))
        assert None not in written
        assert [await w.step(c) for w, c in zip(writers, (here, there), strict=True)] == [None, None]
    (era,) = await eras(settings, found)
    assert era in written


@pytest.mark.slow
async def test_nothing_comes_after_the_end(settings: Settings) -> None:
    """The blocks that are left are an era, then the end marker follows, and later blocks are in none."""
    blocks = mill(settings, 60)
    found = await settled(settings)
    last = closer(settings, found, blocks=10**6)
    async with consumer(settings) as client:
        while not last.ended:
            await last.step(client, end=True)
        mill(settings, 60)
        assert await closer(settings, found).step(client) is None
    assert [(era.blocks, era.end) for era in await eras(settings, found)] == [(blocks, False), (0, True)]


@pytest.mark.slow
async def test_a_writer_whose_era_was_lost_stops(settings: Settings) -> None:
    """A control topic that no longer holds an era that was seen cannot tell what was trained on."""
    mill(settings, 60)
    found = await settled(settings)
    one = closer(settings, found)
    async with consumer(settings) as client:
        await one.step(client)
        await one.step(client)
    await make_anew(settings, found.stream.control_topic)
    async with consumer(settings) as client:  # the first one learns late that the topic was made anew
        with pytest.raises(DifferenceError, match="is not on its control topic any more"):
            await one.step(client)
