"""One raw partition on scripted clients: records that hang, or of which workers die, halt it and no other."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.app.mill.scripted_partition import EPOCH, TEXT, TP0, EndedError, World, batch, fed, make_world, resumed
from tests.app.milling.decoding.opened import opened
from tests.faults.deadly_stages import STAGES, deadly
from tokenmill.app.kafka.fetched_batches import FetchedBatch, PackedBatch
from tokenmill.app.mill import raw_partition as module
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.worker.in_flight import MOST_DEATHS, Board, Deaths, RecordsInFlight, nameless_file
from tokenmill.documents import Record


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
        assert partition.position == 9
        assert len(world.board.free) == 255
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


def in_hand(world: World, partition: RawPartition, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return what will be noted as in hand, in order, each once."""
    found: list[tuple[int, int]] = []
    note = partition._containment.note

    def noted(first: int, last: int) -> None:
        if found[-1:] != [(first, last)]:
            found.append((first, last))
        note(first, last)

    monkeypatch.setattr(partition._containment, "note", noted)
    for name in ("done", "hanging"):
        monkeypatch.setattr(noted, name, getattr(note, name), raising=False)
    return found


async def test_what_was_in_flight_at_a_death_is_in_hand_alone_and_a_deadly_record_halts_its_partition_before_it(
    world: World, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next death says which one it is; all before it is milled, and a skip is what makes it go on."""
    world.deaths = deaths
    deaths.add([RecordsInFlight("raw", 0, 2, 4), RecordsInFlight("raw", 1, 0, 9)])
    async with resumed(world) as partition:
        hands = in_hand(world, partition, monkeypatch)
        await fed(partition, batch(*[TEXT] * 7))
        assert hands == [(0, 1), (2, 2), (3, 3), (4, 4), (5, 6)]
        assert (partition.halted, partition.position) == (None, 7)
        deaths.add([RecordsInFlight("raw", 0, 8, 8)])
        deaths.add([RecordsInFlight("raw", 0, 8, 8)])
        await fed(partition, batch(TEXT, TEXT, first=7))
        assert (hands[5:], partition.position) == ([(7, 7), (8, 8)], 9)
        deaths.add([RecordsInFlight("raw", 0, 10, 10)] * 3)
        sent = len(world.told("tokens.raw.train"))
        await fed(partition, batch(*[TEXT] * 3, first=9))
        assert (hands[7:], partition.position) == ([(9, 9)], 10)
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
    """What is before it in the fetch is milled first, and it is in hand by itself once a worker died over it."""

    def packed(*numbers: int, broken: bool = False) -> PackedBatch:
        records = (Record(at, 1000 + at, None, TEXT) for at in numbers)
        return PackedBatch(numbers[0], numbers[-1] + 1, 0, (at if not broken else 1 // 0 for at in records))

    def fetch() -> FetchedBatch:
        return FetchedBatch(TP0, [packed(0, 1), packed(2), packed(3, 4, broken=True), packed(5)], 6, EPOCH)

    world.deaths = deaths
    async with resumed(world) as partition:
        hands = in_hand(world, partition, monkeypatch)
        with pytest.raises(ZeroDivisionError):
            await fed(partition, fetch())
        assert hands == [(0, 1), (2, 2), (3, 4)]
        assert partition.position == 0
        assert partition._note.hanging(0) == RecordsInFlight("raw", 0, 3, 4)
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        with pytest.raises(ZeroDivisionError):
            await fed(partition, fetch())
        assert hands[3:] == [(0, 1), (2, 2), (0, 2), (3, 4)]
        assert partition.position == 3
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        deaths.add([RecordsInFlight("raw", 0, 3, 4)])
        await fed(partition, fetch())
        assert partition.position == 3
        assert "one of the offsets 3 to 4 of raw[0]" in str(partition.halted)


@pytest.mark.parametrize("name", STAGES)
async def test_whatever_stage_a_record_kills_at_the_third_death_halts_its_partition_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: Deaths, name: str
) -> None:
    """All before it is milled by then; a skip lets it be tried as often again, where it does not spare it the stage."""

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
    world = make_world(tmp_path, monkeypatch, {"train": 1000})
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
