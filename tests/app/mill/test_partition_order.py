"""One raw partition on scripted clients: what waits for what, what is marked when, and what it stands still for."""

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from faust.types import TP
from structlog.testing import capture_logs

from tests.app.milling.decoding.opened import opened
from tests.faults.deadly_stages import STAGES, deadly
from tokenmill.app.kafka.clients import InvalidRecordError
from tokenmill.app.kafka.control_log import ControlLog, ignore_record
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.kafka.fetched_batches import FetchedBatch, PackedBatch
from tokenmill.app.kafka.topics import Existing
from tokenmill.app.mill import publisher
from tokenmill.app.mill import raw_partition as module
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.mill.recipes import MillContext, RawTopicPlan, plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.worker.in_flight import MOST_DEATHS, Board, Deaths, RecordsInFlight, nameless_file
from tokenmill.documents import Record
from tokenmill.errors import (
    DamagedError,
    EngineError,
    FingerprintError,
    PanicError,
    SourceError,
    TokenMillError,
    TopicError,
)
from tokenmill.reading import Tail, genesis_point
from tokenmill.recipe import Genesis
from tokenmill.wire.chain import Cursor, genesis_hash
from tokenmill.wire.message import HEADER_NAME, decode_message

EPOCH = 7
TP0 = TP("raw", 0)
TEXT = b"a document that fills more than a block, for a block has sixty-four bytes; " * 2


class EndedError(BaseException):
    """Stands for the end of the process."""


@dataclass
class World:
    """Everything around a partition: its clock, its skip list, its topics."""

    settings: Settings
    plan: RawTopicPlan
    events: list[tuple[str, Any]] = field(default_factory=list)
    """What was done, in order: a message sent (topic, first block, next offset), a mark, a start."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """What is sent to these topics is acknowledged when its event is set."""
    refused: set[str] = field(default_factory=set)
    """What is sent to these topics is refused."""
    now: float = 1000.0
    tails: dict[str, Tail | TokenMillError] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    errors: dict[str, KafkaError] = field(default_factory=dict)
    """What brokers answer for records of a topic."""
    asked: list[int] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=lambda: {"max.message.bytes": "1048576"})
    """Of the token topics."""
    board: Board = field(default_factory=Board)
    deaths: Deaths = field(default_factory=Deaths.inherited)
    streams: list[Settled] = field(default_factory=list)
    missing: list[TopicError] = field(default_factory=list)
    """Why there is no token partition yet, at each look."""

    def partition(self) -> RawPartition:
        """Return a partition in this world that has done nothing yet."""
        self.streams = []
        for stream, recipe in sorted(self.plan.recipes.items()):
            settled = Settled(stream, Genesis(stream.name, recipe, (0,), 16), ControlLog())
            self.streams.append(settled)
            start = genesis_point(0, genesis_hash(recipe.fingerprint, 0))
            self.tails.setdefault(stream.name, Tail(start, start.cursor, 0))
        return RawPartition(
            TP0,
            MillContext(
                settings=self.settings,
                stages=self.plan.stages,
                streams=self.streams,
                skip_list=self,  # type: ignore[arg-type]
                token_topics=defaultdict(lambda: Existing(1, self.configs)),
                letter_bytes=defaultdict(lambda: 1 << 20),
                require_partition=self.require,
                partitions=self.partitions_of,
                send=self.send,
                leader=lambda _tp: "one",
                start_partition=self.start,
                set_durable=lambda _tp, offset: self.events.append(("durable", offset)),
                board=self.board,
                deaths=self.deaths,
            ),
        )

    async def partitions_of(self, _topic: str) -> int:
        """Have one dead-letter partition."""
        return 1

    async def require(self, partition: int) -> None:
        """Have every partition, once nothing is missing."""
        if self.missing:
            raise self.missing.pop()
        self.events.append(("required", partition))

    async def settle(self, _client: object, _partition: int, cursors: Collection[Cursor]) -> frozenset[int]:
        """Be the skip list."""
        self.events.append(("settled", len(cursors)))
        return self.skipped

    def wanted(self, _partition: int, _cursors: Collection[Cursor]) -> list[int]:
        """Say what people ask for."""
        return self.asked

    async def start(self, _tp: TP, offset: int) -> int:
        """Let the source flow."""
        self.events.append(("started", offset))
        return EPOCH

    async def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        """Take a record, and acknowledge it when it is let through."""
        assert (partition, key) == (0, None)
        if topic in self.refused:
            raise OSError("refused")
        if topic in self.errors:
            raise self.errors[topic]
        header = dict(headers).get(HEADER_NAME)
        what: Any = value
        if header is not None:
            message = decode_message(header, value)
            what = ("carry" if message.is_carry else message.first, message.cursor.next_offset)
        self.events.append((topic, what))
        if topic in self.gates:
            await self.gates[topic].wait()
        at = self.offsets.get(topic, 0)
        self.offsets[topic] = at + 1
        return at

    def told(self, *kinds: str) -> list[Any]:
        """Return what was done of these kinds."""
        return [what for kind, what in self.events if kind in kinds]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world with one stream."""
    return make_world(tmp_path, monkeypatch, {"train": 1000})


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: dict[str, int], **others: Any) -> World:
    """Return a world with these splits, whose processes end with an `EndedError`."""
    settings = Settings(
        raw_topics=("raw",), tokenizer="bytes", sequence_length=63, message_bytes=64, store=tmp_path, splits=splits,
        shards=sum(splits.values()), **others,
    )  # fmt: skip
    found = World(settings, plan_topic(settings, "raw"))

    @asynccontextmanager
    async def consumer(_settings: object) -> AsyncIterator[object]:
        yield object()

    async def read_tail(_client: object, settled: Settled, *_: object) -> Tail:
        tail = found.tails[settled.stream.name]
        if isinstance(tail, TokenMillError):
            raise tail
        return tail

    def end_process(reason: str, **_: object) -> NoReturn:
        found.events.append(("ended", reason))
        raise EndedError(reason)

    monkeypatch.setattr(module, "consumer", consumer)
    monkeypatch.setattr(module, "read_tail", read_tail)
    monkeypatch.setattr(module, "end_process", end_process)
    monkeypatch.setattr(publisher, "end_process", end_process)
    clock = SimpleNamespace(monotonic=lambda: found.now, time=lambda: found.now, perf_counter=lambda: found.now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(publisher, "time", clock)
    return found


@asynccontextmanager
async def resumed(world: World) -> AsyncIterator[RawPartition]:
    """Yield a partition that has resumed."""
    partition = world.partition()
    await partition.resume()
    try:
        yield partition
    finally:
        if not partition.stuck:
            partition.stop()


def batch(*values: bytes | None, first: int = 0, epoch: int = EPOCH, position: int | None = None) -> FetchedBatch:
    """Return what a fetch brought."""
    records: list[Any] = [Record(at, 1000 + at, None, value) for at, value in enumerate(values, first)]
    return FetchedBatch(TP0, records, first + len(values) if position is None else position, epoch)


async def rest(times: int = 50) -> None:
    """Let everything run that can."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what threads do."""
    while not condition():  # noqa: ASYNC110 - a thread tells nobody
        await asyncio.sleep(0.001)


async def fed(partition: RawPartition, found: FetchedBatch) -> None:
    """Feed, and let what was queued be sent."""
    await partition.feed(found)
    await rest()


async def test_a_chain_resumes_before_its_source_flows(world: World) -> None:
    """Token partitions, then tails, then the skip list, and last of all the source, from where the chain continues."""
    async with resumed(world) as partition:
        assert world.events == [("required", 0), ("settled", 1), ("started", 0)]
        assert (partition.halted, partition.progress().state, partition.position) == (None, "running", 0)


async def test_what_is_on_the_skip_list_is_not_milled(world: World) -> None:
    """The list is the one that was settled in the resume."""
    world.skipped = frozenset({1})
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, TEXT, TEXT))
        assert world.told("raw.dead-letters") == [TEXT]


async def test_a_partition_waits_for_its_token_partition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not add it says what is missing, and looks again until somebody has added it; nothing else is harmed."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    world.missing = [TopicError("partition 0 is missing: grant Alter")] * 3
    with capture_logs() as said:
        async with resumed(world) as partition:
            assert (partition.status()["waiting"], partition.halted) == (None, None)
    waits = [line["reason"] for line in said if line["event"] == "waiting"]
    assert waits == ["partition 0 is missing: grant Alter"] * 3


@pytest.mark.parametrize(("topic", "value"), [("raw.dead-letters", b"\xff"), ("raw.rejected", b" ")])
async def test_nothing_past_a_letter_is_sent_before_that_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, value: bytes
) -> None:
    """Of a dead letter, or of what is filtered out where that is kept: messages wait, and so does the position."""
    world = make_world(tmp_path, monkeypatch, {"train": 1000}, rejects="topic")
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


async def test_what_is_filtered_out_is_sent_nowhere_unless_it_is_to_be_kept(world: World) -> None:
    """The documents beside it are milled."""
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, b" ", TEXT))
        assert world.told("raw.rejected") == []
        assert world.told("tokens.raw.train")


async def test_a_dead_letter_that_is_refused_stops_what_is_past_it(world: World) -> None:
    """The error goes up, and ends the worker; no message was queued."""
    world.refused.add("raw.dead-letters")
    async with resumed(world) as partition:
        with pytest.raises(OSError, match="refused"):
            await partition.feed(batch(TEXT, b"\xff"))
        await rest()
        assert world.told("tokens.raw.train") == []


@pytest.mark.parametrize(
    "error",
    [MessageSizeTooLargeError(), InvalidRecordError(), TopicAuthorizationFailedError(), UnknownTopicOrPartitionError()],
    ids=lambda error: type(error).__name__,
)
async def test_a_topic_that_takes_no_letters_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    """As long as it takes none; its partition says so, and what is past the record is sent after that."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    async def described(*_: object) -> dict[str, Existing]:
        return {"raw.dead-letters": Existing(1, {"max.message.bytes": "20000"})}

    monkeypatch.setattr(module, "described", described)
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


async def test_durable_is_the_lowest_of_all_chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source may be forgotten up to there only: one chain waits for its acknowledgement."""
    world = make_world(tmp_path, monkeypatch, {"train": 500, "validation": 500})
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


async def test_the_source_begins_at_the_lowest_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that is ahead skips what it has; the other is behind."""
    world = make_world(tmp_path, monkeypatch, {"train": 500, "validation": 500})
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
    """Of another epoch, before the resume, or after the stop."""
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


@pytest.mark.parametrize("error", [SourceError("gone"), DamagedError("bad"), FingerprintError("another's")])
async def test_what_only_a_person_mends_halts_the_partition(world: World, error: TokenMillError) -> None:
    """In its resume: nothing is started, nothing is raised, and it says why."""
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
    """Messages that wait are let go with it; any other error goes up."""
    world.gates["tokens.raw.train"] = asyncio.Event()
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, TEXT))
        assert len(world.told("tokens.raw.train")) == 1
        assert partition._mill is not None

        def lies(_records: object, _looked: object = None) -> NoReturn:
            raise DamagedError("the engine gave other ids")

        monkeypatch.setattr(partition._mill, "feed", lies)
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
        (RuntimeError("unexpected"), True),
        (MemoryError(), True),
        (EngineError("the engines differ"), False),
        (PanicError("native code panicked"), False),
    ],
)
async def test_an_unexpected_error_is_not_swallowed_and_leaves_the_note(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, *, noted: bool
) -> None:
    """A supervisor reads there what was in flight; a partition that halts says it itself, with the command."""
    async with resumed(world) as partition:
        assert partition._mill is not None

        def fails(_records: object, _looked: object = None) -> NoReturn:
            partition._note(0, 0)
            raise error

        monkeypatch.setattr(partition._mill, "feed", fails)
        with pytest.raises(type(error)) if noted else nullcontext():
            await partition.feed(batch(TEXT))
        world.board.pardon()  # as whatever ends a process does
        assert world.board.records_in_flight() == ([RecordsInFlight("raw", 0, 0, 0)] if noted else [])
        assert (partition.halted is None) == noted
        if isinstance(error, PanicError):
            assert "`tokenmill skip raw 0 0`" in str(partition.halted)


async def test_a_resume_is_tried_again_once_more_messages_are_ignored(world: World) -> None:
    """Of this partition; then the chain goes on as if it had never halted."""
    partition = world.partition()
    right = world.tails["raw.train"]
    world.tails["raw.train"] = DamagedError("a stray record")
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
    """Tick, and return how many carries were sent so far."""
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


async def test_without_retention_a_carry_waits_for_its_time_and_for_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`carry_seconds` after the last message, and never twice for one position."""
    world = make_world(tmp_path, monkeypatch, {"train": 1000}, carry_seconds=60.0)
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


async def test_a_carry_comes_after_much_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`carry_bytes` since the last message, not since the beginning."""
    world = make_world(tmp_path, monkeypatch, {"train": 1000}, carry_bytes=20, carry_seconds=1000.0)
    async with resumed(world) as partition:
        sizes = []
        for number in range(6):
            await fed(partition, batch(b"sixteen bytes...", first=number))
            sizes.append(await carries(world, partition))
        assert sizes == [0, 1, 1, 1, 2, 2]  # the fourth document fills a block


async def test_a_split_without_documents_gets_carries_though_there_is_always_more_to_mill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tick finds the partition idle then."""
    world = make_world(tmp_path, monkeypatch, {"train": 1000, "thin": 1}, carry_bytes=1)
    async with resumed(world) as partition:
        await fed(partition, batch(TEXT, TEXT))
        assert partition._mill is not None
        assert not partition._mill.chains["thin"].totals.kept
        assert world.told("tokens.raw.thin") == [("carry", 2)]


async def test_no_carry_overtakes_a_message(world: World) -> None:
    """Where one is on its way, the next tick is early enough."""
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
        assert partition.position == 9
        assert len(world.board.free) == 255
    assert len(world.board.free) == 256


async def test_a_record_that_ends_after_all_lets_the_partition_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state says so again, and it can be given up in order."""
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
    """Return what a supervisor tells its workers of the deaths of others."""
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
