"""One raw partition on scripted clients: what waits for what, what is marked when, and what it stands still for."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any, NoReturn
from unittest.mock import AsyncMock, Mock

import pytest
from aiokafka import errors as kafka_errors
from structlog.testing import capture_logs

from tests.app.conftest import EndedError, rest, until
from tests.app.mill.conftest import EPOCH, TEXT, TP0, World, WorldFactory, batch, fed, resumed
from tests.app.milling.decoding.opened import opened
from tests.faults.deadly_stages import STAGES, deadly
from tokenmill import errors
from tokenmill.app.kafka.clients import InvalidRecordError
from tokenmill.app.kafka.control_log import ignore_record
from tokenmill.app.kafka.fetched_batches import FetchedBatch, PackedBatch
from tokenmill.app.kafka.topics import Existing
from tokenmill.app.mill import raw_partition as module
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.worker.in_flight import MOST_DEATHS, Board, Deaths, RecordsInFlight, nameless_file
from tokenmill.documents import Record
from tokenmill.reading import Tail


async def test_a_chain_resumes_before_its_source_flows(world: World) -> None:
    """What is on the skip list that was settled then is not milled; what is filtered out is sent nowhere by default."""
    world.skipped = frozenset({1})
    async with resumed(world) as partition:
        assert world.events == [("required", 0), ("settled", 1), ("started", 0)]
        assert (partition.halted, partition.progress().state, partition.position) == (None, "running", 0)
        await fed(partition, batch(TEXT, TEXT, b" ", TEXT))
        assert (world.told("raw.dead-letters"), world.told("raw.rejected")) == ([TEXT], [])
        assert world.told("tokens.raw.train")


async def test_a_partition_waits_for_its_token_partition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    world.missing = [errors.TopicError("partition 0 is missing: grant Alter")] * 3
    with capture_logs() as said:
        async with resumed(world) as partition:
            assert (partition.status()["waiting"], partition.halted) == (None, None)
    waits = [line["reason"] for line in said if line["event"] == "waiting"]
    assert waits == ["partition 0 is missing: grant Alter"] * 3


@pytest.mark.parametrize(("topic", "value"), [("raw.dead-letters", b"\xff"), ("raw.rejected", b" ")])
async def test_nothing_past_a_letter_is_sent_before_that_is_acknowledged(
    make_world: WorldFactory, topic: str, value: bytes
) -> None:
    world = make_world({"train": 1000}, rejects="topic")
    world.gates[topic] = asyncio.Event()
    async with resumed(world) as partition:
        feeding = asyncio.create_task(partition.feed(batch(TEXT, value, TEXT)))
        await until(lambda: world.told(topic))
        await rest()
        assert world.told("tokens.raw.train") == []
        assert (partition.position, feeding.done()) == (0, False)
        world.gates[topic].set()
        await feeding
        await rest()
        assert world.told(topic) == [value]
        assert world.told("tokens.raw.train")
        assert partition.position == 3


async def test_a_dead_letter_that_is_refused_stops_what_is_past_it(world: World) -> None:
    world.errors["raw.dead-letters"] = OSError("refused")
    async with resumed(world) as partition:
        with pytest.raises(OSError, match="refused"):
            await partition.feed(batch(TEXT, b"\xff"))
        await rest()
        assert world.told("tokens.raw.train") == []


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.MessageSizeTooLargeError(),
        InvalidRecordError(),
        kafka_errors.TopicAuthorizationFailedError(),
        kafka_errors.UnknownTopicOrPartitionError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_topic_that_takes_no_letters_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, error: kafka_errors.KafkaError
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    found = {"raw.dead-letters": Existing(1, {"max.message.bytes": "20000"})}
    monkeypatch.setattr(module, "described", AsyncMock(return_value=found))
    world.errors["raw.dead-letters"] = error
    async with resumed(world) as partition:
        feeding = asyncio.create_task(partition.feed(batch(TEXT, b"\xff" * 100_000)))
        await until(lambda: partition.waiting)
        assert f"topic raw.dead-letters takes no letters ({error!r})" in str(partition.waiting)
        assert (partition.progress().state, partition.position) == ("waiting", 0)
        assert world.told("tokens.raw.train", "raw.dead-letters") == []
        del world.errors["raw.dead-letters"]
        await feeding
        await rest()
        (letter,) = world.told("raw.dead-letters")
        assert (partition.progress().state, len(letter) < 20_000) == ("running", True)
        assert world.told("tokens.raw.train")


async def test_letters_that_take_long_are_waited_for_in_words(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody takes the partition for one that makes no progress."""
    monkeypatch.setattr(module, "HANG_SECONDS", 0.01)
    world.gates["raw.dead-letters"] = asyncio.Event()
    async with resumed(world) as partition:
        feeding = asyncio.create_task(partition.feed(batch(TEXT, b"\xff")))
        await until(lambda: partition.waiting)
        assert "has not taken a letter" in str(partition.waiting)
        world.gates["raw.dead-letters"].set()
        await feeding
        assert (partition.progress().state, len(world.told("raw.dead-letters"))) == ("running", 1)


async def test_durable_is_the_lowest_of_all_chains(make_world: WorldFactory) -> None:
    """The source may be forgotten up to there only: one chain waits for its acknowledgement."""
    world = make_world({"train": 500, "validation": 500})
    world.gates["tokens.raw.validation"] = asyncio.Event()
    async with resumed(world) as partition:
        await fed(partition, batch(*(TEXT + b"%d" % number for number in range(20))))
        assert set(world.told("durable")) == {0}
        world.gates["tokens.raw.validation"].set()
        await rest(400)
        marks = world.told("durable")
        assert marks == sorted(marks)
        lowest = min(chain["offset"] for chain in partition.status()["chains"].values())
        assert 15 < lowest == marks[-1]


async def test_the_source_begins_at_the_lowest_cursor(make_world: WorldFactory) -> None:
    world = make_world({"train": 500, "validation": 500})
    partition = world.partition()
    ahead = world.tails["raw.train"]
    assert isinstance(ahead, Tail)
    point = replace(ahead.point, cursor=replace(ahead.point.cursor, next_offset=9))
    world.tails["raw.train"] = replace(ahead, point=point)
    await partition.resume()
    assert (world.told("started"), partition.position) == ([0], 0)
    world.tails["raw.validation"] = world.tails["raw.train"]
    heir = RawPartition(TP0, partition._context)
    await heir.resume()
    assert (world.told("started"), heir.position) == ([0, 9], 9)
    partition.stop()
    heir.stop()


async def test_what_was_fetched_before_the_start_is_let_go(world: World) -> None:
    partition = world.partition()
    await partition.feed(batch(TEXT))
    await partition.resume()
    await partition.feed(batch(TEXT, epoch=EPOCH - 1))
    assert partition._mill is not None
    assert (partition.position, partition._mill.chains["train"].totals.records) == (0, 0)
    partition.stop()
    await partition.feed(batch(TEXT))
    await rest()
    assert (partition.position, world.told("tokens.raw.train")) == (0, [])


async def test_what_was_milled_while_the_partition_moved_is_let_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No dead letter, no message: the next owner makes both."""
    async with resumed(world) as partition:
        assert partition._mill is not None
        mill = partition._mill.feed

        def moved(records: Sequence[Any], _looked: object = None) -> object:
            partition._generation = EPOCH + 1
            return mill(records)

        monkeypatch.setattr(partition._mill, "feed", moved)
        await fed(partition, batch(TEXT, b"\xff"))
        assert world.told("tokens.raw.train", "raw.dead-letters") == []


@pytest.mark.parametrize(
    "error", [errors.SourceError("gone"), errors.DamagedError("bad"), errors.FingerprintError("another's")]
)
async def test_what_only_a_person_mends_halts_the_partition(world: World, error: errors.TokenMillError) -> None:
    world.partition()
    world.tails["raw.train"] = error
    partition = RawPartition(TP0, world.partition()._context)
    await partition.resume()
    assert (partition.halted, partition.progress().state) == (str(error), "halted")
    assert partition.status()["halted_by"] == error.brief
    assert world.told("started", "settled") == []
    await partition.feed(batch(TEXT))
    assert partition.position == 0
    partition.stop()


async def test_a_halt_while_milling_sends_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.gates["tokens.raw.train"] = asyncio.Event()
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, TEXT))
        assert len(world.told("tokens.raw.train")) == 1
        monkeypatch.setattr(partition._mill, "feed", Mock(side_effect=errors.DamagedError("the engine gave other ids")))
        await partition.feed(batch(TEXT, first=2))
        assert partition.halted == "the engine gave other ids"
        assert not partition.may_go_on()
        world.gates["tokens.raw.train"].set()
        await rest()
        assert len(world.told("tokens.raw.train")) == 1
        assert partition._note.hanging(0) is None


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (RuntimeError(), True),
        (MemoryError(), True),
        (errors.EngineError("they differ"), False),
        (errors.PanicError("native"), False),
    ],
)
async def test_an_unexpected_error_is_not_swallowed_and_leaves_the_note(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, *, noted: bool
) -> None:
    """A supervisor reads there what was in flight; a partition that halts says it itself, with the command."""
    async with resumed(world) as partition:

        def fails(*_: object) -> NoReturn:
            partition._note(0, 0)
            raise error

        monkeypatch.setattr(partition._mill, "feed", fails)
        with pytest.raises(type(error)) if noted else nullcontext():
            await partition.feed(batch(TEXT))
        world.board.pardon()  # as whatever ends a process does
        assert world.board.records_in_flight() == ([RecordsInFlight("raw", 0, 0, 0)] if noted else [])
        assert (partition.halted is None) == noted
        if isinstance(error, errors.PanicError):
            assert "`tokenmill skip raw 0 0`" in str(partition.halted)


async def test_a_resume_is_tried_again_once_more_messages_are_ignored(world: World) -> None:
    partition = world.partition()
    right = world.tails["raw.train"]
    world.tails["raw.train"] = errors.DamagedError("a stray record")
    await partition.resume()
    control = world.streams[0].control
    assert not partition.may_go_on()
    control.add(*ignore_record(1, 5, bytes(16)))
    assert not partition.may_go_on()
    control.add(*ignore_record(0, 5, bytes(16)))
    assert partition.may_go_on()
    await partition.resume()
    assert (partition.halted, partition.may_go_on()) == ("a stray record", False)
    world.tails["raw.train"] = right
    control.add(*ignore_record(0, 6, bytes(16)))
    assert partition.may_go_on()
    await partition.resume()
    assert (partition.halted, partition.progress().state, partition.may_go_on()) == (None, "running", False)
    await fed(partition, batch(TEXT))
    assert world.told("tokens.raw.train")
    partition.stop()


async def test_a_wish_to_skip_ends_the_process_where_it_can_be_granted(world: World) -> None:
    """The next start settles it; one that resumes does so by itself."""
    partition = world.partition()
    world.asked = [4]
    partition.heed_skips()
    await partition.resume()
    with pytest.raises(EndedError, match="offset 4 of raw"):
        partition.heed_skips()
    world.asked = []
    partition.heed_skips()
    partition.stop()


async def carries(world: World, partition: RawPartition) -> int:
    await partition.tick()
    await rest()
    return sum(what[0] == "carry" for what in world.told("tokens.raw.train"))


async def test_a_carry_comes_at_half_the_retention(world: World) -> None:
    """At its whole, the last one would be gone, and with it the cursor; so it is repeated though nothing is new."""
    world.configs["retention.ms"] = "100000"
    async with resumed(world) as partition:
        await fed(partition, batch(b"short"))
        for round_ in range(3):
            world.now += 49.0
            assert await carries(world, partition) == round_
            world.now += 1.0
            assert await carries(world, partition) == round_ + 1


async def test_without_retention_a_carry_waits_for_its_time_and_for_something_new(make_world: WorldFactory) -> None:
    world = make_world({"train": 1000}, carry_seconds=60.0)
    async with resumed(world) as partition:
        world.now += 1000.0
        assert await carries(world, partition) == 0
        await fed(partition, batch(b"short"))
        assert await carries(world, partition) == 1
        world.now += 1000.0
        assert await carries(world, partition) == 1
        await fed(partition, batch(b"short", first=1))
        assert await carries(world, partition) == 2
        await fed(partition, batch(b"short", first=2))
        world.now += 59.0
        assert await carries(world, partition) == 2
        world.now += 1.0
        assert await carries(world, partition) == 3


async def test_a_carry_comes_after_much_source(make_world: WorldFactory) -> None:
    """`carry_bytes` since the last message, not since the beginning."""
    world = make_world({"train": 1000}, carry_bytes=20, carry_seconds=1000.0)
    async with resumed(world) as partition:
        sizes = []
        for number in range(6):
            await fed(partition, batch(b"sixteen bytes...", first=number))
            sizes.append(await carries(world, partition))
        assert sizes == [0, 1, 1, 1, 2, 2]  # the fourth document fills a block


async def test_a_split_without_documents_gets_carries_though_there_is_always_more_to_mill(
    make_world: WorldFactory,
) -> None:
    """No tick finds the partition idle then."""
    world = make_world({"train": 1000, "thin": 1}, carry_bytes=1)
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, TEXT))
        assert partition._mill is not None
        assert not partition._mill.chains["thin"].totals.kept
        assert world.told("tokens.raw.thin") == [("carry", 2)]


async def test_no_carry_overtakes_a_message(world: World) -> None:
    world.configs["retention.ms"] = "10000"
    world.gates["tokens.raw.train"] = asyncio.Event()
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT))
        world.now += 100.0
        assert await carries(world, partition) == 0
        assert partition._publishers["train"].pending_bytes == len(partition._publishers["train"]._pending) * 64
        assert not any(message.is_carry for message in partition._publishers["train"]._pending)
        world.gates["tokens.raw.train"].set()
        await rest()
        assert await carries(world, partition) == 1


async def test_no_carry_is_written_beside_a_feed_before_the_start_or_after_the_stop(world: World) -> None:
    """What is milled at the moment is in no state that a carry could tell."""
    world.configs["retention.ms"] = "10000"
    partition = world.partition()
    assert await carries(world, partition) == 0
    await partition.resume()
    world.now += 100.0
    async with partition._lock:
        assert await carries(world, partition) == 0
    partition._generation = None
    assert await carries(world, partition) == 0
    partition.stop()


async def test_the_slot_of_a_hanging_record_stays_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another partition that took it would name other records; and the partition cannot be given up without an end."""
    async with resumed(world) as partition:
        partition._note(3, 5)
        await partition.tick()
        assert partition.halted is None
        monkeypatch.setattr(module, "HANG_SECONDS", 0.0)
        await partition.tick()
        said = partition.halted
        partition.halted = "said once"
        await partition.tick()
        assert partition.halted == "said once"
        partition.halted = said
        assert "one of the offsets 3 to 5 of raw[0]" in str(said)
        assert partition.stuck
        with pytest.raises(EndedError, match="is given up while milling has hung"):
            partition.stop()
        assert len(world.board.free) == 255
        assert [(found.first, found.last) for found in world.board.records_in_flight()] == [(3, 5)]
        partition._note.done()


async def test_the_position_is_behind_offsets_that_are_nobodys(world: World) -> None:
    """Where a fetch ended, not where its last record stood; and the slot is free again in the end."""
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, position=9))
        assert (partition.position, len(world.board.free)) == (9, 255)
    assert len(world.board.free) == 256


async def test_a_record_that_ends_after_all_lets_the_partition_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANG_SECONDS", 0.0)
    async with resumed(world) as partition:
        partition._note(0, 0)
        await partition.tick()
        assert partition.progress().state == "halted"
        await fed(partition, batch(TEXT))
        assert (partition.halted, partition.progress().state) == (None, "running")
    assert "ended" not in dict(world.events)


@pytest.fixture
def deaths() -> Iterator[Deaths]:
    file = nameless_file()
    yield Deaths(file)
    os.close(file)


def in_hand(partition: RawPartition, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[int, int]]]:
    """Return what tells what was noted as in hand from now on, in order, each once."""
    noted = Mock(wraps=partition._containment.note)
    monkeypatch.setattr(partition._containment, "note", noted)
    return lambda: [hand for hand, _ in groupby(call.args for call in noted.call_args_list)]


async def test_what_was_in_flight_at_a_death_is_in_hand_alone_and_a_deadly_record_halts_its_partition_before_it(
    world: World, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next death says which one it is; all before it is milled, and a skip is what makes it go on."""
    world.deaths = deaths
    deaths.add([RecordsInFlight("raw", 0, 2, 4), RecordsInFlight("raw", 1, 0, 9)])
    async with resumed(world) as partition:
        hands = in_hand(partition, monkeypatch)
        await fed(partition, batch(*[TEXT] * 7))
        assert hands() == [(0, 1), (2, 2), (3, 3), (4, 4), (5, 6)]
        assert (partition.halted, partition.position) == (None, 7)
        deaths.add([RecordsInFlight("raw", 0, 8, 8)])
        deaths.add([RecordsInFlight("raw", 0, 8, 8)])
        await fed(partition, batch(TEXT, TEXT, first=7))
        assert (hands()[5:], partition.position) == ([(7, 7), (8, 8)], 9)
        deaths.add([RecordsInFlight("raw", 0, 10, 10)] * 3)
        sent = len(world.told("tokens.raw.train"))
        await fed(partition, batch(*[TEXT] * 3, first=9))
        assert (hands()[7:], partition.position) == ([(9, 9)], 10)
        assert "`tokenmill skip raw 0 10`" in str(partition.halted)
        assert partition.status()["halted_by"] == partition.halted
        assert len(world.told("tokens.raw.train")) > sent
        await fed(partition, batch(TEXT, first=12))
        assert partition.position == 10
    world.skipped = frozenset({10})
    world.tails.clear()
    async with resumed(world) as partition:
        await fed(partition, batch(*[TEXT] * 12))
        assert (partition.halted, partition.position) == (None, 12)


async def test_a_batch_that_cannot_be_unpacked_is_noted_and_in_the_end_left_packed(
    world: World, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def packed(*numbers: int, broken: bool = False) -> PackedBatch:
        records = (Record(at, 1000 + at, None, TEXT) for at in numbers)
        return PackedBatch(numbers[0], numbers[-1] + 1, 0, (at if not broken else 1 // 0 for at in records))

    def fetch() -> FetchedBatch:
        return FetchedBatch(TP0, [packed(0, 1), packed(2), packed(3, 4, broken=True), packed(5)], 6, EPOCH)

    world.deaths = deaths
    async with resumed(world) as partition:
        hands = in_hand(partition, monkeypatch)
        with pytest.raises(ZeroDivisionError):
            await fed(partition, fetch())
        assert hands() == [(0, 1), (2, 2), (3, 4)]
        assert partition.position == 0
        assert partition._note.hanging(0) == RecordsInFlight("raw", 0, 3, 4)
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        with pytest.raises(ZeroDivisionError):
            await fed(partition, fetch())
        assert hands()[3:] == [(0, 1), (2, 2), (0, 2), (3, 4)]
        assert partition.position == 3
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        await fed(partition, fetch())
        assert partition.position == 3
        assert "one of the offsets 3 to 4 of raw[0]" in str(partition.halted)


@pytest.mark.parametrize("name", STAGES)
async def test_whatever_stage_a_record_kills_at_the_third_death_halts_its_partition_before_it(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch, deaths: Deaths, name: str
) -> None:
    def die() -> NoReturn:
        raise EndedError

    def fetch() -> FetchedBatch:
        values = [TEXT] * 5 + [stage.value, TEXT, TEXT]
        packed = [PackedBatch(at, at + 1, 0, [Record(at, 1000 + at, None, value)]) for at, value in enumerate(values)]
        return FetchedBatch(TP0, packed, len(values), EPOCH)

    async def lives(skipped: frozenset[int] = frozenset()) -> tuple[list[RecordsInFlight], RawPartition]:
        found: list[RecordsInFlight] = []
        while True:
            world.board, world.skipped = Board(), skipped
            world.tails.clear()
            world.offsets.clear()
            if name == "learn":
                world.plan = replace(plan, stages=replace(plan.stages, decoder=opened("avro")))
            async with resumed(world) as partition:
                try:
                    await fed(partition, fetch())
                except EndedError:
                    (one,) = world.board.records_in_flight()
                    deaths.add([one])
                    found.append(one)
                    assert len(found) <= MOST_DEATHS, "it is met again and again"
                    continue
            return found, partition

    stage = STAGES[name]
    world = make_world({"train": 1000})
    world.deaths, plan = deaths, world.plan
    monkeypatch.setattr(stage.owner, stage.function, deadly(stage, die))
    died_over, partition = await lives()
    assert len(died_over) == MOST_DEATHS
    assert died_over[0].first <= 5 <= died_over[0].last
    assert died_over[1:] == [RecordsInFlight("raw", 0, 5, 5)] * 2
    assert "`tokenmill skip raw 0 5`" in str(partition.halted)
    assert partition.position == 5
    died_over, partition = await lives(frozenset({5}))
    assert died_over == ([] if stage.passed else [RecordsInFlight("raw", 0, 5, 5)] * MOST_DEATHS)
    assert partition.position == (8 if stage.passed else 5)
    assert (partition.halted is None) == stage.passed
