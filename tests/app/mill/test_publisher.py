"""The sender of one token partition, on scripted acknowledgements: order, marks, and what ends the process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn
from unittest.mock import AsyncMock

import pytest

from tests.app.conftest import EndedError, rest
from tests.histories import BLOCK_BYTES, make_history
from tests.mills import RECIPE, make_source, text
from tokenmill.app.kafka.dead_letters import WrittenLetter
from tokenmill.app.kafka.topics import HEADERS_BYTES
from tokenmill.app.mill import publisher as module
from tokenmill.app.mill.publisher import CarryTime, LogEnd, Publisher, ValueCarries
from tokenmill.app.milling.partition_mill import ChainMill
from tokenmill.documents import Record
from tokenmill.errors import StrayError
from tokenmill.reading import FIRST_TAIL
from tokenmill.wire.chain import NO_RECORD, Cursor
from tokenmill.wire.message import HEADER_NAME, Message, decode_message, encode_header

TRUE_END = make_history(8)
LAST = (TRUE_END.message(0, 2), TRUE_END.message(2, 4))
LEADER, OTHER = "leader", "another leader, or a new connection to it"


async def _lost(
    offset: int, *, leader: str = LEADER, last: Sequence[Message] = LAST, found: Sequence[Message] = ()
) -> tuple[str | None, list[tuple[int, int]]]:
    """Return what is said of an acknowledgement after the partition ended at offset 5, and what was read for it."""
    asked: list[tuple[int, int]] = []

    async def read(start: int, end: int) -> Sequence[tuple[int, Message]]:
        asked.append((start, end))
        return list(zip(range(5 - len(found), 5), found, strict=True))

    end = LogEnd(5, last, LEADER)
    return await end.acknowledged(offset, leader, TRUE_END.message(4, 5), read), asked


@pytest.mark.parametrize(
    ("offset", "leader", "reason"),
    [
        (5, LEADER, None),
        (0, OTHER, "acknowledged offset 0, below 5"),
        (4, OTHER, "acknowledged offset 4, below 5"),
    ],
    ids=["what follows directly", "the first offset once more", "an offset that was taken before"],
)
async def test_where_the_offset_tells_nothing_is_read(offset: int, leader: str, reason: str | None) -> None:
    assert await _lost(offset, leader=leader) == (reason, [])


@pytest.mark.parametrize(("offset", "leader"), [(6, LEADER), (9, OTHER), (5, OTHER)])
async def test_in_doubt_the_last_messages_are_read_again(offset: int, leader: str) -> None:
    assert await _lost(offset, leader=leader, found=LAST) == (None, [(5 - FIRST_TAIL, offset)])
    wrong = (
        (LAST[0], make_history(8, other_from=2).message(2, 4)),
        (LAST[0], TRUE_END.message(3, 4)),
        (TRUE_END.message(1, 2), LAST[1]),  # an equal one at the end proves nothing
        (),
    )
    for found in wrong:
        reason, _ = await _lost(offset, leader=leader, found=found)
        assert reason == "holds other messages below offset 5 than before"


@pytest.mark.parametrize(
    ("last", "found"), [(LAST, LAST[1:]), (LAST, (TRUE_END.message(0, 1), *LAST)), ((), ())],
    ids=["retention took one", "nobody knew one", "there was none"],
)  # fmt: skip
async def test_only_what_both_hold_is_compared(last: Sequence[Message], found: Sequence[Message]) -> None:
    assert (await _lost(7, leader=OTHER, last=last, found=found))[0] is None


async def test_each_acknowledgement_is_the_next_ones_past() -> None:
    log = {4: TRUE_END.message(2, 4), 5: TRUE_END.message(4, 5), 6: TRUE_END.message(0, 2), 7: TRUE_END.message(0, 2)}

    async def read(start: int, end: int) -> Sequence[tuple[int, Message]]:
        return [(at, log[at]) for at in range(start, end) if at in log]

    end = LogEnd(5, LAST[1:], LEADER)
    for at, message in ((5, log[5]), (8, TRUE_END.message(5, 6)), (9, TRUE_END.message(6, 7))):
        log[at] = message
        assert await end.acknowledged(at, OTHER, message, read) is None
    log[6] = TRUE_END.message(0, 1)
    assert await end.acknowledged(10, LEADER, TRUE_END.message(7, 8), read) is not None


ROOM = 1 << 20


def chain_after(records: list[Record]) -> ChainMill:
    parameters = {"open_blocks": 4}
    source = make_source(replace(RECIPE, block_tokens=64, packing="fit", packing_parameters=parameters))
    mill = source.mill()
    mill.feed(records)
    return mill.chains["train"]


def test_one_is_due_while_the_oldest_record_is_in_danger() -> None:
    chain, carries = chain_after([text(5, "ab"), text(9, "cd")]), ValueCarries(ROOM)
    assert not carries.is_due(chain, 0)
    carries.endangered_below = 5
    assert not carries.is_due(chain, 0)
    carries.endangered_below = 6
    assert carries.is_due(chain, 3)
    carry = chain.carry(20, by_value=True)
    assert carry is not None
    assert carries.allowed(carry)
    assert not ValueCarries(0).allowed(carry)  # too large
    carries.written(carry, 3)
    assert not carries.is_due(chain, 3 + module.MOST_MESSAGES - 1)
    assert carries.is_due(chain, 3 + module.MOST_MESSAGES)
    carries.endangered_below = 20
    assert not carries.is_due(chain, 4)
    carries.endangered_below = 21
    assert carries.is_due(chain, 4)


def test_a_chain_without_open_blocks_needs_none() -> None:
    carries = ValueCarries(ROOM)
    carries.endangered_below = 1 << 40
    (recipe,) = make_source().recipes
    assert not carries.is_due(make_source().chain(recipe), 0)
    mill = make_source().mill()
    mill.feed([text(5, "a")])
    assert not carries.is_due(mill.chains["train"], 0)


LENGTH = 12
TRUE = make_history(LENGTH)
MESSAGES = [TRUE.message(n, n + 1) for n in range(LENGTH)]


@dataclass
class Wire:
    arrived: list[Message] = field(default_factory=list)
    answers: list[asyncio.Future[int]] = field(default_factory=list)
    durable: list[tuple[int, int]] = field(default_factory=list)
    """The block up to which the publisher was durable when it told so, and the message's end."""
    read: AsyncMock = field(default_factory=lambda: AsyncMock(return_value=()))
    """Gives nothing: as if the partition had lost its end."""
    strays: list[StrayError] = field(default_factory=list)
    leader: str = "one"
    ends: list[str] = field(default_factory=list)
    publisher: Publisher = field(init=False)

    async def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        assert (topic, partition, key) == ("tokens", 3, None)
        self.arrived.append(decode_message(dict(headers)[HEADER_NAME], value))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def put(self, messages: Sequence[Message]) -> None:
        await self.publisher.put(messages)
        await rest()

    async def answer(self, found: int | Exception) -> None:
        waiting = next(answer for answer in self.answers if not answer.done())
        waiting.set_result(found) if isinstance(found, int) else waiting.set_exception(found)
        await rest()


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    made = Wire()

    def end_process(reason: str, *, code: int = 75, error: BaseException | None = None) -> NoReturn:
        made.ends.append(f"{reason}: {error!r}" if error else reason)
        raise EndedError(reason)

    monkeypatch.setattr(module, "end_process", end_process)
    monkeypatch.setattr(module, "FAR_SECONDS", 1e9)
    made.publisher = Publisher(
        send=made.send, topic="tokens", partition=3, durable=Cursor(0, 0, 0, NO_RECORD), end=LogEnd(0, (), "one"),
        leader=lambda: made.leader, read=made.read, on_stray=made.strays.append,
        on_durable=lambda message: made.durable.append((made.publisher.durable.block, message.end)),
        carry_time=CarryTime(1000.0, 1000, None), value_carries=ValueCarries(ROOM), most_bytes=ROOM,
    )  # fmt: skip
    made.publisher.start()
    yield made
    made.publisher.stop()
    assert made.publisher._task is not None
    await asyncio.gather(made.publisher._task, return_exceptions=True)


async def test_one_message_is_in_flight(wire: Wire) -> None:
    await wire.publisher.put(MESSAGES[:3])
    for number in range(3):
        await rest()
        assert [message.first for message in wire.arrived] == list(range(number + 1))
        assert (wire.publisher.durable.block, wire.publisher.messages) == (number, number)
        assert not wire.publisher.idle
        assert wire.publisher.pending_bytes == (3 - number) * BLOCK_BYTES
        await wire.answer(number)
    assert (wire.publisher.idle, wire.publisher.pending_bytes) == (True, 0)
    assert wire.publisher.durable == MESSAGES[2].cursor
    assert (wire.durable, wire.ends) == ([(1, 1), (2, 2), (3, 3)], [])
    wire.read.assert_not_awaited()


@pytest.mark.parametrize("error", [RuntimeError("refused"), TimeoutError(), OSError(5)])
async def test_nothing_is_sent_after_one_that_failed(wire: Wire, error: Exception) -> None:
    await wire.put(MESSAGES[:3])
    await wire.answer(0)
    await wire.answer(error)
    (end,) = wire.ends
    assert "was not acknowledged" in end
    assert repr(error) in end
    assert [message.first for message in wire.arrived] == [0, 1]
    assert wire.durable == [(1, 1)]


async def test_an_acknowledgement_below_a_known_offset_ends_the_process(wire: Wire) -> None:
    await wire.put(MESSAGES[:3])
    await wire.answer(7)
    await wire.answer(7)
    assert wire.ends == ["tokens[3] acknowledged offset 7, below 8: it lost its tail"]
    assert wire.durable == [(1, 1)]


async def test_another_leader_makes_the_end_be_read_again(wire: Wire) -> None:
    await wire.put(MESSAGES[:3])
    await wire.answer(0)
    wire.leader = "two"
    await wire.answer(1)
    wire.read.assert_awaited_once_with(1 - 8, 1)
    (end,) = wire.ends
    assert "holds other messages below offset 1" in end
    assert len(wire.arrived) == 2


async def test_a_read_that_fails_ends_the_process(wire: Wire) -> None:
    """It is not certain that the message stands at the log's end."""
    wire.read.side_effect = RuntimeError("no broker")
    await wire.put(MESSAGES[:1])
    wire.leader = "two"
    await wire.answer(0)
    assert (len(wire.ends), wire.durable) == (1, [])


@pytest.fixture
def far(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Wire:
    monkeypatch.setattr(module, "FAR_SECONDS", 1e-9)
    return wire


async def test_messages_that_wait_for_far_brokers_are_sent_as_one(far: Wire) -> None:
    await far.put(MESSAGES[:6])
    await far.answer(0)
    await far.answer(1)
    assert far.arrived == [MESSAGES[0], TRUE.message(1, 6)]
    assert (far.durable, far.publisher.messages) == ([(1, 1), (6, 6)], 2)
    assert far.publisher.idle
    assert far.publisher.pending_bytes == 0


async def test_what_is_joined_has_a_bound(far: Wire) -> None:
    far.publisher.most_bytes = HEADERS_BYTES + len(encode_header(TRUE.message(1, 3))) + 2 * BLOCK_BYTES
    await far.put(MESSAGES[:7])
    for offset in range(2):
        await far.answer(offset)
    far.publisher.most_bytes = 1
    for offset in range(2, 5):
        await far.answer(offset)
    assert [(message.first, message.end) for message in far.arrived] == [(0, 1), (1, 3), (3, 5), (5, 6), (6, 7)]


async def test_carries_are_joined_with_nothing(far: Wire) -> None:
    carry = replace(MESSAGES[1], before=MESSAGES[1].after, first=2, tokens=b"", entries=[], chains=())
    await far.put([*MESSAGES[:2], carry, *MESSAGES[2:4]])
    for offset in range(4):
        await far.answer(offset)
    assert [(message.first, message.end) for message in far.arrived] == [(0, 1), (1, 2), (2, 2), (2, 4)]


async def test_what_waits_is_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES", 2 * BLOCK_BYTES)
    putting = asyncio.create_task(wire.publisher.put(MESSAGES[:5]))
    for number in range(5):
        await rest()
        assert wire.publisher.pending_bytes <= 2 * BLOCK_BYTES
        assert putting.done() == (number >= 3)
        await wire.answer(number)
    await putting
    assert wire.arrived == MESSAGES[:5]


async def test_who_waits_for_room_is_let_go_by_the_stop_which_ends_no_process(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in flight may arrive or not: the next owner looks. Nothing more is sent, not even what is put later."""
    monkeypatch.setattr(module, "PENDING_BYTES", BLOCK_BYTES)
    putting = asyncio.create_task(wire.publisher.put(MESSAGES[:5]))
    await rest()
    wire.publisher.stop()
    await asyncio.wait_for(putting, 10)
    before = wire.publisher.pending_bytes
    await wire.put(MESSAGES[5:])
    assert wire.publisher.pending_bytes == before
    assert (wire.ends, wire.durable, len(wire.arrived)) == ([], [], 1)


async def test_a_stray_record_beside_its_messages_ends_the_sending_and_no_process(wire: Wire) -> None:
    await wire.put(MESSAGES[:3])
    wire.read.side_effect = stray = StrayError("offset 0 of tokens[3]: something else wrote it")
    await wire.answer(1)
    assert (wire.strays, wire.ends) == ([stray], [])
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

    values = [b"%d" % number for number in range(3 * module.LETTERS_AT_ONCE + 1)]
    await module.send_letters(send, "letters", [(1, WrittenLetter(None, value, ())) for value in values])
    assert (most, sorted(filter(None, arrived))) == (module.LETTERS_AT_ONCE, sorted(values))
