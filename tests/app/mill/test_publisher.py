"""The sender of one token partition, on scripted acknowledgements: order, marks, and what ends the process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import pytest

from tests.histories import BLOCK_BYTES, make_history
from tokenmill.app.kafka.dead_letters import WrittenLetter
from tokenmill.app.kafka.topics import HEADERS_BYTES
from tokenmill.app.mill import publisher as module
from tokenmill.app.mill.publisher import (
    LETTERS_AT_ONCE,
    CarryTime,
    LogEnd,
    Publisher,
    ValueCarries,
    send_letters,
)
from tokenmill.errors import StrayError
from tokenmill.wire.chain import NO_RECORD, Cursor
from tokenmill.wire.message import HEADER_NAME, Message, decode_message, encode_header

LENGTH = 12
TRUE = make_history(LENGTH)
MESSAGES = [TRUE.message(n, n + 1) for n in range(LENGTH)]


class EndedError(BaseException):
    """Stands for the end of the process."""


@dataclass
class Wire:
    """A broker's side: what arrived, and the acknowledgements that are still to come."""

    arrived: list[Message] = field(default_factory=list)
    answers: list[asyncio.Future[int]] = field(default_factory=list)
    durable: list[tuple[int, int]] = field(default_factory=list)
    """The block up to which the publisher was durable when it told so, and the message's end."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    stray: StrayError | None = None
    """What a read finds that is not the stream's."""
    strays: list[StrayError] = field(default_factory=list)
    leader: str = "one"
    ends: list[str] = field(default_factory=list)
    publisher: Publisher = field(init=False)

    async def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        """Take a message; acknowledge it when `answer` says so."""
        assert (topic, partition, key) == ("tokens", 3, None)
        self.arrived.append(decode_message(dict(headers)[HEADER_NAME], value))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def read(self, start: int, end: int) -> Sequence[tuple[int, Message]]:
        """Give nothing: as if the partition had lost its end."""
        self.reads.append((start, end))
        if self.stray is not None:
            raise self.stray
        return ()

    async def settle(self) -> None:
        """Let everything run that can."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def answer(self, found: int | Exception) -> None:
        """Acknowledge the oldest message at an offset, or fail it."""
        waiting = next(answer for answer in self.answers if not answer.done())
        if isinstance(found, int):
            waiting.set_result(found)
        else:
            waiting.set_exception(found)
        await self.settle()


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    """Yield a publisher that continues an empty partition."""
    made = Wire()

    def end_process(reason: str, *, code: int = 75, error: BaseException | None = None) -> NoReturn:
        made.ends.append(f"{reason}: {error!r}" if error else reason)
        raise EndedError(reason)

    monkeypatch.setattr(module, "end_process", end_process)
    monkeypatch.setattr(module, "FAR_SECONDS", 1e9)
    made.publisher = Publisher(
        send=made.send,
        topic="tokens",
        partition=3,
        durable=Cursor(0, 0, 0, NO_RECORD),
        end=LogEnd(0, (), "one"),
        leader=lambda: made.leader,
        read=made.read,
        on_stray=made.strays.append,
        on_durable=lambda message: made.durable.append((made.publisher.durable.block, message.end)),
        carry_time=CarryTime(1000.0, 1000, None),
        value_carries=ValueCarries(1 << 20),
        most_bytes=1 << 20,
    )
    made.publisher.start()
    yield made
    made.publisher.stop()
    task = made.publisher._task
    assert task is not None
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def test_one_message_is_in_flight(wire: Wire) -> None:
    """The next is sent when the last is acknowledged, in order; until then nothing of it is durable."""
    await wire.publisher.put(MESSAGES[:3])
    for number in range(3):
        await wire.settle()
        assert [message.first for message in wire.arrived] == list(range(number + 1))
        assert (wire.publisher.durable.block, wire.publisher.messages) == (number, number)
        assert not wire.publisher.idle
        assert wire.publisher.pending_bytes == (3 - number) * BLOCK_BYTES
        await wire.answer(number)
    assert wire.publisher.idle
    assert wire.publisher.pending_bytes == 0
    assert wire.publisher.durable == MESSAGES[2].cursor
    assert wire.durable == [(1, 1), (2, 2), (3, 3)]
    assert wire.ends == []
    assert wire.reads == []


@pytest.mark.parametrize("error", [RuntimeError("refused"), TimeoutError(), OSError(5)])
async def test_nothing_is_sent_after_one_that_failed(wire: Wire, error: Exception) -> None:
    """The process ends; what failed is durable for nobody."""
    await wire.publisher.put(MESSAGES[:3])
    await wire.settle()
    await wire.answer(0)
    await wire.answer(error)
    assert len(wire.ends) == 1
    assert "was not acknowledged" in wire.ends[0]
    assert repr(error) in wire.ends[0]
    assert [message.first for message in wire.arrived] == [0, 1]
    assert wire.durable == [(1, 1)]


async def test_an_acknowledgement_below_a_known_offset_ends_the_process(wire: Wire) -> None:
    """The partition lost its tail; the message counts for nothing."""
    await wire.publisher.put(MESSAGES[:3])
    await wire.settle()
    await wire.answer(7)
    await wire.answer(7)
    assert wire.ends == ["tokens[3] acknowledged offset 7, below 8: it lost its tail"]
    assert wire.durable == [(1, 1)]


async def test_another_leader_makes_the_end_be_read_again(wire: Wire) -> None:
    """What was acknowledged is not there any more: the process ends before anything later is sent."""
    await wire.publisher.put(MESSAGES[:3])
    await wire.settle()
    await wire.answer(0)
    wire.leader = "two"
    await wire.answer(1)
    assert wire.reads == [(1 - 8, 1)]
    assert len(wire.ends) == 1
    assert "holds other messages below offset 1" in wire.ends[0]
    assert len(wire.arrived) == 2


async def test_a_read_that_fails_ends_the_process(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not certain that the message stands at the log's end."""

    async def broken(_start: int, _end: int) -> Sequence[tuple[int, Message]]:
        raise RuntimeError("no broker")

    monkeypatch.setattr(wire.publisher, "read", broken)
    await wire.publisher.put(MESSAGES[:1])
    await wire.settle()
    wire.leader = "two"
    await wire.answer(0)
    assert len(wire.ends) == 1
    assert wire.durable == []


@pytest.fixture
def far(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Let any acknowledgement be one that takes long."""
    monkeypatch.setattr(module, "FAR_SECONDS", 1e-9)
    return wire


async def test_messages_that_wait_for_far_brokers_are_sent_as_one(far: Wire) -> None:
    """It is the message that a mill would make of their blocks at once; all of it is acknowledged together."""
    await far.publisher.put(MESSAGES[:6])
    await far.settle()
    await far.answer(0)
    await far.answer(1)

    assert far.arrived == [MESSAGES[0], TRUE.message(1, 6)]
    assert (far.durable, far.publisher.messages) == ([(1, 1), (6, 6)], 2)
    assert far.publisher.idle
    assert far.publisher.pending_bytes == 0


async def test_what_is_joined_has_a_bound(far: Wire) -> None:
    """As the topic takes it, headers included; a message that is larger goes alone."""
    far.publisher.most_bytes = HEADERS_BYTES + len(encode_header(TRUE.message(1, 3))) + 2 * BLOCK_BYTES
    await far.publisher.put(MESSAGES[:7])
    await far.settle()
    for offset in range(2):
        await far.answer(offset)
    far.publisher.most_bytes = 1
    for offset in range(2, 5):
        await far.answer(offset)

    assert [(message.first, message.end) for message in far.arrived] == [(0, 1), (1, 3), (3, 5), (5, 6), (6, 7)]


async def test_carries_are_joined_with_nothing(far: Wire) -> None:
    """They hold what stands behind the blocks before them."""
    carry = replace(MESSAGES[1], before=MESSAGES[1].after, first=2, tokens=b"", entries=[], chains=())
    await far.publisher.put([*MESSAGES[:2], carry, *MESSAGES[2:4]])
    await far.settle()
    for offset in range(4):
        await far.answer(offset)

    assert [(message.first, message.end) for message in far.arrived] == [(0, 1), (1, 2), (2, 2), (2, 4)]


async def test_what_waits_is_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is taken when something was acknowledged; nothing is lost or swapped by the waiting."""
    monkeypatch.setattr(module, "PENDING_BYTES", 2 * BLOCK_BYTES)
    putting = asyncio.create_task(wire.publisher.put(MESSAGES[:5]))
    for number in range(5):
        await wire.settle()
        assert wire.publisher.pending_bytes <= 2 * BLOCK_BYTES
        assert putting.done() == (number >= 3)
        await wire.answer(number)
    await putting
    assert wire.arrived == MESSAGES[:5]


async def test_who_waits_for_room_is_let_go_by_the_stop(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is sent, not even what is put later."""
    monkeypatch.setattr(module, "PENDING_BYTES", BLOCK_BYTES)
    putting = asyncio.create_task(wire.publisher.put(MESSAGES[:5]))
    await wire.settle()
    wire.publisher.stop()
    await asyncio.wait_for(putting, 10)
    before = wire.publisher.pending_bytes
    await wire.publisher.put(MESSAGES[5:])
    await wire.settle()
    assert wire.publisher.pending_bytes == before
    assert len(wire.arrived) == 1
    assert wire.ends == []


async def test_a_stop_ends_no_process(wire: Wire) -> None:
    """What was in flight may arrive or not: the next owner looks."""
    await wire.publisher.put(MESSAGES[:2])
    await wire.settle()
    wire.publisher.stop()
    await wire.settle()
    assert (wire.ends, wire.durable, len(wire.arrived)) == ([], [], 1)


async def test_a_stray_record_beside_its_messages_ends_the_sending_and_no_process(wire: Wire) -> None:
    """The partition halts, as it does where a mill finds it at its start; nothing is sent after that."""
    await wire.publisher.put(MESSAGES[:3])
    await wire.settle()
    wire.stray = StrayError("offset 0 of tokens[3]: something else wrote it")
    await wire.answer(1)
    assert (wire.strays, wire.ends) == ([wire.stray], [])
    assert len(wire.arrived) == 1
    assert wire.publisher.durable.block == 0


async def test_letters_of_a_large_fetch_go_out_in_parts_and_all_of_them() -> None:
    """Sent all at once, they would wait for each other's room in the client for longer than a letter may."""
    under_way, most, arrived = 0, 0, list[bytes | None]()

    async def send(
        topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        nonlocal under_way, most
        assert (topic, partition, key, headers) == ("letters", 1, None, ())
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        arrived.append(value)
        return len(arrived)

    values = [b"%d" % number for number in range(3 * LETTERS_AT_ONCE + 1)]
    await send_letters(send, "letters", [(1, WrittenLetter(None, value, ())) for value in values])
    assert (most, sorted(filter(None, arrived))) == (LETTERS_AT_ONCE, sorted(values))
