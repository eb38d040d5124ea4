"""Batches on their way: what their marks may say, what was acknowledged, and that an earlier producer is refused."""

import asyncio
import random
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFenced,
)

from tests.app.sources.reading import content_of
from tests.app.tools.produce.scripted_kafka import RAW, Builder, Producer, ScriptedKafka, Stored
from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import producer, sending_to
from tokenmill.app.settings import Settings
from tokenmill.app.tools.produce.run_notes import MARK_HEADER
from tokenmill.app.tools.produce.sending import (
    BATCH_BYTES,
    OPEN_BYTES,
    RECORD_BYTES,
    Acknowledged,
    Sender,
    SentDocument,
    batch_bytes,
    fenced_producer,
)
from tokenmill.errors import InputError, TopicError


def document(number: int, value: bytes, key: bytes | None = None) -> SentDocument:
    return SentDocument(key, value, number, ("a.jsonl", number + 1))


class Sending:
    """A sender of small batches to three partitions, and what its marks were told."""

    def __init__(self, *, marks: bool = True, size: int = 100) -> None:
        self.kafka = ScriptedKafka(3, random.Random(0))
        self.marked: list[tuple[int, int]] = []
        sent = {number: Acknowledged() for number in range(3)}
        mark = self._mark if marks else None
        self.sender = Sender(Producer(self.kafka, None), RAW, size, sent, mark)

    def _mark(self, number: int, unsettled: int) -> bytes:
        self.marked.append((number, unsettled))
        return b"%d" % number

    def put(self, *numbers: int) -> None:
        for number in numbers:
            assert self.sender.put(number % 3, document(number, b"%d" % number))

    async def arrive(self, *partitions: int) -> None:
        for number in partitions:
            self.kafka.arrive(TopicPartition(RAW, number))
        for _ in range(3):  # the future, the task that waits for it, its callback
            await asyncio.sleep(0)

    def records(self, partition: int) -> list[Stored]:
        return self.kafka.logs[TopicPartition(RAW, partition)].records

    async def settle(self) -> None:
        delivering = asyncio.create_task(self.kafka.deliver())
        try:
            await self.sender.settle()
        finally:
            delivering.cancel()

    def fail(self, error: Exception) -> None:
        self.kafka.refuse = lambda _: error


@pytest.fixture
async def some() -> Sending:
    return Sending()


async def test_a_mark_knows_what_is_not_acknowledged(some: Sending) -> None:
    """Neither what waits in another partition's open batch, nor what is under way: a resume would leave it out."""
    some.put(0, 1, 2, 3, 4, 5)
    await some.sender.send(1)
    assert some.marked[-1] == (4, 0), "documents 0 and 2 are in open batches"
    await some.sender.send(0)
    assert some.marked[-1] == (3, 0), "nothing is acknowledged"
    await some.arrive(0)
    await some.sender.send(2)
    assert some.marked[-1] == (5, 1), "document 1 is under way"
    some.put(6, 7)
    await some.arrive(1)
    await some.sender.send(1)
    assert some.marked[-1] == (7, 2), "document 2 is under way"
    await some.arrive(2)
    some.put(8)
    await some.sender.send(2)
    assert some.marked[-1] == (8, 6), "document 6 is in an open batch"
    await some.arrive(1, 2)
    await some.sender.send(0)
    assert some.marked[-1] == (6, 6), "all others are acknowledged, and this one is not"


async def test_a_batch_under_way_counts_by_its_first_document(some: Sending) -> None:
    some.put(0, 3)
    await some.sender.send(0)
    some.put(6)
    waiting = asyncio.create_task(some.sender.send(0))
    some.put(1)
    await some.sender.send(1)
    assert some.marked == [(3, 0), (1, 0)]
    await some.arrive(0)
    await waiting
    assert some.marked[-1] == (6, 1)


@pytest.mark.parametrize("refused", [{0}, {3}, {12}, {0, 12}, {3, 6}, {0, 3, 6, 9, 12}, {3, 15}])
async def test_only_the_records_that_are_refused_are_left_out(refused: set[int]) -> None:
    some = Sending(size=1000)
    some.kafka.refuse_value = lambda value: MessageSizeTooLargeError() if int(value or 0) in refused else None
    some.sender.refuse = told = AsyncMock()
    some.put(0, 3, 6, 9, 12)
    await some.sender.send(0)
    some.put(15, 1)
    await some.settle()
    some.put(18)
    await some.settle()

    assert [call.args[0].number for call in told.await_args_list] == sorted(refused)
    assert all(isinstance(call.args[1], MessageSizeTooLargeError) for call in told.await_args_list)
    wanted = [number for number in (0, 3, 6, 9, 12, 15, 18) if number not in refused]
    records = some.records(0)
    assert [int(record.value or 0) for record in records] == wanted
    marks = {int(dict(record.headers)[MARK_HEADER]) for record in records if record.headers}
    assert marks >= {some.sender.last[0]} == {wanted[-1]}
    assert some.sender.sent[0].documents == len(wanted)
    assert some.sender.sent[1].documents == 1


@pytest.mark.parametrize("error", [InvalidTimestampError, CorruptRecordException])
async def test_what_may_help_is_tried_again_as_it_is(some: Sending, error: type[KafkaError]) -> None:
    """A batch that waited for a broker is too old, and not after it was sent again."""
    answers = [error()]
    some.kafka.refuse = lambda _: answers.pop() if answers else None
    some.sender.refuse = lambda *_: pytest.fail("nothing is refused for good")
    some.put(0, 3)
    await some.sender.send(0)
    await some.settle()
    assert [record.value for record in some.records(0)] == [b"0", b"3"]
    assert [len(record.headers) for record in some.records(0)] == [0, 1]


async def test_a_refusal_that_ends_the_run_lets_the_other_partitions_finish(some: Sending) -> None:
    some.kafka.refuse_value = lambda value: MessageSizeTooLargeError() if value == b"3" else None

    async def refuse(record: SentDocument, *_: object) -> None:
        raise InputError(str(record.where))

    some.sender.refuse = refuse
    some.put(0, 3, 6)
    await some.sender.send(0)
    some.put(1, 4)
    for _ in range(2):
        with pytest.raises(InputError, match=r"'a\.jsonl', 4"):
            await some.settle()
    assert [some.records(number)[-1].value for number in (0, 1)] == [b"0", b"4"]


async def test_only_the_last_record_of_a_batch_has_the_mark() -> None:
    for marks in (True, False):
        some = Sending(marks=marks)
        some.put(0, 3, 6)
        await some.sender.send_open()
        await some.arrive(0)
        assert [record.value for record in some.records(0)] == [b"0", b"3", b"6"]
        assert [record.headers for record in some.records(0)] == [(), (), ((MARK_HEADER, b"6"),) if marks else ()]


async def test_a_batch_has_as_much_as_fits() -> None:
    """A document that is larger than a batch is one by itself; all open ones together are bounded."""
    some = Sending(size=2 * (RECORD_BYTES + 5))
    assert some.sender.put(0, document(0, b"x" * 1000))
    assert not some.sender.put(0, document(3, b""))
    await some.sender.send(0)
    assert some.sender.put(0, document(3, b"12", b"key"))
    assert some.sender.put(0, document(6, b"12", b"key"))
    assert not some.sender.put(0, document(9, b""))
    assert some.sender.put(1, document(1, b""))
    await some.arrive(0)
    await some.sender.send_open()
    await some.arrive(0, 1)
    assert [len(some.records(number)) for number in range(3)] == [3, 1, 0]
    assert some.records(0)[1].key == b"key"
    assert batch_bytes(1) == BATCH_BYTES
    assert batch_bytes(1000) * 1000 <= OPEN_BYTES


async def test_a_batch_that_does_not_fit_is_never_sent_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for refused in (0, 1):
        some = Sending()
        some.put(0, 3)
        answers = [None if number == refused else True for number in range(2)]
        monkeypatch.setattr(Builder, "append", lambda *_, answers=answers, **__: answers.pop(0))
        with pytest.raises(ValueError, match="does not fit"):
            await some.sender.send(0)
        assert not some.kafka.under_way[TopicPartition(RAW, 0)]


async def test_what_is_acknowledged_is_counted_when_it_is(some: Sending) -> None:
    some.put(0, 3, 1)
    await some.sender.send_open()
    assert some.sender.sent[0] == Acknowledged()
    await some.arrive(0)
    assert some.sender.sent == {0: Acknowledged(2, 2), 1: Acknowledged(), 2: Acknowledged()}
    some.sender.client.kafka.under_way[TopicPartition(RAW, 1)][0].future.cancel()
    await asyncio.sleep(0)
    assert some.sender.sent[1] == Acknowledged()


async def test_settle_waits_for_every_batch_and_tells_what_was_refused_meanwhile(some: Sending) -> None:
    some.put(0, 1)
    await some.sender.send(0)
    settling = asyncio.create_task(some.sender.settle())
    await asyncio.sleep(0)
    await some.arrive(0)
    assert not settling.done()
    await some.arrive(1)
    await settling
    assert [sent.documents for sent in some.sender.sent.values()] == [1, 1, 0]

    some.put(3)
    some.fail(ProducerFenced())
    settling = asyncio.create_task(some.sender.settle())
    await asyncio.sleep(0)
    await some.arrive(0)
    with pytest.raises(ProducerFenced):
        await settling


async def test_nothing_is_sent_after_a_batch_that_was_refused(some: Sending) -> None:
    some.put(0, 1)
    await some.sender.send_open()
    some.fail(MessageSizeTooLargeError())
    await some.arrive(0)
    some.fail(InvalidTopicError())
    await some.arrive(1)
    some.put(3)
    for ask in (some.sender.send(0), some.sender.send_open(), some.sender.settle(), some.sender.send(2)):
        with pytest.raises(TopicError, match=r"raise its max\.message\.bytes"):
            await ask
    assert not some.kafka.under_way[TopicPartition(RAW, 0)]


async def test_brokers_that_are_silent_end_the_run(some: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.tools.produce.sending.SILENCE_SECONDS", 0.01)
    some.put(0)
    with pytest.raises(KafkaTimeoutError):
        await some.sender.settle()


def test_errors_are_the_topics_or_stay_what_they_are() -> None:
    for error, raised in (
        (MessageSizeTooLargeError(), TopicError),
        (InvalidTopicError(), TopicError),
        (KafkaConnectionError(), TopicError),
        (ProducerFenced(), ProducerFenced),
        (KafkaTimeoutError(), KafkaTimeoutError),
        (RuntimeError(), RuntimeError),
    ):
        with pytest.raises(raised), sending_to(RAW):
            raise error


@pytest.mark.parametrize("partition", [0, 1])
async def test_an_earlier_producer_is_refused(settings: Settings, topic: TopicFactory, partition: int) -> None:
    raw = topic(2)
    async with producer(settings, transactional_id=raw) as earlier:
        earlier._txn_manager.transactional_id = None  # as an owner writes
        await earlier.send_and_wait(raw, b"first", partition=0)
        async with fenced_producer(settings, raw, {raw: 2}) as later:
            with pytest.raises(ProducerFenced):
                await earlier.send_and_wait(raw, b"too late", partition=partition)
            for number in (0, 1):
                await later.send_and_wait(raw, b"second", partition=number)
            assert await content_of(settings, raw, 2) == [[(None, b"first"), (None, b"second")], [(None, b"second")]]
