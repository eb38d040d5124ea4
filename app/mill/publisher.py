"""What a mill sends: each chain's messages, one in flight, in order, nothing after a hole; and dead letters.

The steps that this takes part in are numbered in `app.mill.raw_partition.RawPartition.feed`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

import structlog
from aiokafka import TopicPartition

from tokenmill.errors import StrayError
from tokenmill.reading import FIRST_TAIL
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import HEADER_NAME, HEADER_OVERHEAD, Message, encode_header

from ..kafka.clients import Send
from ..kafka.dead_letters import (
    LetterTopic,
    RecordPlace,
    WrittenLetter,
    cut_letter,
    encode_dead_letter,
    letter_partition,
)
from ..kafka.topics import HEADERS_BYTES, JOINED_BYTES
from ..milling.outcomes import Outcome
from ..milling.partition_mill import ChainMill
from ..telemetry import worker_metrics as metrics
from ..worker.ending import end_process

PENDING_BYTES: Final = 16 << 20
"""Tokens that may wait for one token partition, the message in flight included."""
FAR_PENDING_BYTES: Final = 2 * JOINED_BYTES
"""The same while messages are joined: the next one gathers meanwhile."""
FAR_SECONDS: Final = 0.025
"""How long an acknowledgement may take before messages are joined; brokers that are near take less than half of it."""
LETTERS_AT_ONCE: Final = 500
"""Letters that are sent together. All that wait for room in aiokafka's batch are woken by each batch that goes: of the
20,000 that a kilobyte of records can make, most would wait longer than a record may."""
MOST_MESSAGES: Final = 16
"""Messages between two carries by value, so that the tail that a resume reads at first holds one."""
_Known: TypeAlias = tuple[int, Cursor, bytes]
"""What is remembered of a message: its first block, and where it leaves the chain."""
ReadMessages: TypeAlias = Callable[[int, int], Awaitable[Sequence[tuple[int, Message]]]]
"""Reads the messages at the offsets ``[start, end)`` of the token partition, each with its offset, those that retention
has left; none where the partition does not reach the end."""

log = structlog.get_logger(__name__)


class LogEnd:
    """The place after the last message that a writer knows of: from its resume, then from its acknowledgements.

    A broker that lost its tail acknowledges the next message at an offset that was taken before. But another worker may
    have filled the partition again meanwhile, even to the same offset; then only what is below it shows that. So a
    writer whose message does not follow its last one directly, or who reached another leader or the same one again,
    looks whether the last messages are still at their places. The last one alone does not show it: other writers of the
    same blocks may have put an equal one there.
    """

    def __init__(self, end_offset: int, last: Sequence[Message], leader: object) -> None:
        """Begin with what the resume read: the partition's end, and the last messages before it, in their order.

        ``leader`` identifies the leader and the connection to it before that; anything that can be compared.
        """
        self._offset = end_offset
        self._last = deque(map(_known, last), maxlen=FIRST_TAIL)
        self._leader = leader

    async def acknowledged(self, offset: int, leader: object, message: Message, read: ReadMessages) -> str | None:
        """Take note that ``leader`` has ``message`` at ``offset``; return why the partition lost its tail, or None.

        After a reason nothing more may be sent: what was acknowledged before may be missing, and only a resume finds
        where the chain ends now.
        """
        known, doubtful = self._offset, leader != self._leader or offset > self._offset
        self._offset, self._leader = offset + 1, leader
        if offset < known:
            return f"acknowledged offset {offset}, below {known}"
        if doubtful:
            found = await read(known - FIRST_TAIL, offset)
            below = [_known(message) for at, message in found if at < known]
            if self._last and not self._are_as_known(below):
                return f"holds other messages below offset {known} than before"
            self._last.extend(_known(message) for at, message in found if at >= known)  # others wrote in between
        self._last.append(_known(message))
        return None

    def _are_as_known(self, found: Sequence[_Known]) -> bool:
        several = min(len(self._last), len(found))
        return several > 0 and list(self._last)[-several:] == list(found[-several:])


def _known(message: Message) -> _Known:
    return message.first, message.cursor, message.after


class CarryTime:
    """Says when one chain needs a carry: after much source, or long, without a message, or before its last one goes."""

    def __init__(self, seconds: float, value_bytes: int, retention: float | None) -> None:
        """``retention`` is that of the token topic, in seconds; None: it keeps messages for ever."""
        self._seconds = seconds
        self._value_bytes = value_bytes
        self._retention = retention
        self.queued()

    def queued(self) -> None:
        """Begin again: a message of the chain was queued."""
        self._since = time.monotonic()
        self._taken = 0

    def took(self, value_bytes: int) -> None:
        """Count source that was milled."""
        self._taken += value_bytes

    def is_due(self, *, behind: bool) -> bool:
        """Return whether one is due; ``behind``: the chain has taken records since its last message's cursor."""
        age = time.monotonic() - self._since
        if self._retention is not None and age >= self._retention / 2:
            return True
        return behind and (age >= self._seconds or self._taken >= self._value_bytes)


class ValueCarries:
    """Says when the carries of one chain hold its open blocks by value."""

    def __init__(self, most_bytes: int) -> None:
        """Carries that are larger are not written so; of the token topic's limit, the rest is the other headers'."""
        self.endangered_below = 0
        """The source offset below which records may soon be gone."""
        self._most_bytes = most_bytes - HEADERS_BYTES
        self._next_offset = -1
        self._messages = 0
        self._said = False

    def is_due(self, chain: ChainMill, messages: int) -> bool:
        """Return whether the chain needs one now, after so many acknowledged ``messages``."""
        if not self.is_in_danger(chain):
            return False
        return self._next_offset < self.endangered_below or messages - self._messages >= MOST_MESSAGES

    def is_in_danger(self, chain: ChainMill) -> bool:
        """Return whether an open block has tokens of a record that may soon be gone."""
        if not self.endangered_below:
            return False
        oldest = chain.oldest_reference
        return oldest is not None and oldest < self.endangered_below

    def allowed(self, carry: Message) -> bool:
        """Return whether a carry by value is small enough to be sent; the log says once where it is not."""
        size = HEADER_OVERHEAD + len(carry.open_tokens) + len(carry.open_entry) + len(carry.references)
        if size <= self._most_bytes:
            return True
        if not self._said:
            log.warning(
                "the open blocks are too large to be written by value: the raw topic's retention must hold what they "
                "refer to",
                bytes=size,
                limit=self._most_bytes,
                offset=carry.cursor.next_offset,
            )
        self._said = True
        return False

    def written(self, carry: Message, messages: int) -> None:
        """Take note of a carry by value."""
        self._next_offset, self._messages = carry.cursor.next_offset, messages


@dataclass(eq=False, kw_only=True)
class Publisher:
    """The writer of one token partition, as long as this worker owns it.

    A broker without state for a producer id accepts any first sequence number, so idempotence alone does not prevent a
    hole: the next message is sent when the last is acknowledged. Messages are large, so this costs nothing; where
    brokers take long to acknowledge (over object stores, 400 ms), those that wait are joined to larger ones.
    """

    send: Send
    topic: str
    partition: int
    durable: Cursor
    """The furthest cursor that is acknowledged: a chain that is continued further back writes messages again."""
    end: LogEnd
    leader: Callable[[], object]
    read: ReadMessages
    """Called when the partition may have lost that end, or there is another leader."""
    on_stray: Callable[[StrayError], None]
    """Called with what `read` finds that is not the stream's; nothing is sent after that."""
    on_durable: Callable[[Message], None]
    carry_time: CarryTime
    """When the chain needs a carry, as far as time and `put` decide it."""
    value_carries: ValueCarries
    """When a carry holds open blocks by value."""
    most_bytes: int
    """Of messages that are sent as one; one that is larger by itself is sent as it is."""
    messages: int = field(default=0, init=False)
    """Messages acknowledged."""
    pending_bytes: int = field(default=0, init=False)
    """Bytes of tokens that wait to be acknowledged."""
    _pending: deque[Message] = field(default_factory=deque, init=False)
    _at_once: int = field(default=1, init=False)
    """Messages that may be sent as one, by how long the last acknowledgement took."""
    _stopped: bool = field(default=False, init=False)
    _room: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _work: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to send what is put."""
        self._task = asyncio.create_task(self._run(), name=f"publish {self.topic}[{self.partition}]")

    def stop(self) -> None:
        """Send nothing more. What is in flight may still arrive: the next owner reads it, or writes the same again."""
        self._stopped = True
        self._room.set()
        if self._task is not None:
            self._task.cancel()

    @property
    def idle(self) -> bool:
        """Whether everything that was put is acknowledged."""
        return not self._pending

    async def put(self, messages: Sequence[Message]) -> None:
        """Take messages to send, waiting while too many bytes are on their way; forget them once stopped."""
        if messages:
            self.carry_time.queued()
        for message in messages:
            while not self._stopped and self.pending_bytes >= (
                FAR_PENDING_BYTES if self._at_once > 1 else PENDING_BYTES
            ):
                self._room.clear()
                await self._room.wait()
            if self._stopped:
                return
            self._pending.append(message)
            self.pending_bytes += _size(message)
            self._work.set()

    async def put_carry(self, chain: ChainMill, position: int) -> None:
        """Take step 6: a carry for the consumer's ``position``, where one is due; by value it may wait for others."""
        by_value = self.value_carries.is_due(chain, self.messages)
        if not by_value and not (self.idle and self.carry_time.is_due(behind=position > self.durable.next_offset)):
            return
        carry = chain.carry(position, by_value=by_value or self.value_carries.is_in_danger(chain))
        if carry is not None and carry.open_tokens and carry.references:
            self.value_carries.written(carry, self.messages)
            carry = carry if self.value_carries.allowed(carry) else chain.carry(position)
        if carry is not None:
            await self.put([carry])

    async def _run(self) -> None:
        while True:
            while not self._pending:
                self._work.clear()
                await self._work.wait()
            together = self._next()
            if not await self._publish(joined(together)):
                return
            for message in together:
                self._pending.popleft()
                self.pending_bytes -= _size(message)
            self._room.set()

    def _next(self) -> list[Message]:
        """Return the messages that are sent next as one: more of them, the longer brokers take to acknowledge."""
        first, *others = islice(self._pending, self._at_once)
        if not others or first.is_carry:
            return [first]
        room, found = self.most_bytes - HEADERS_BYTES - len(first.tokens) - len(encode_header(first)), [first]
        for message in others:
            room -= len(message.tokens) + sum(map(len, message.entries))
            if room < 0 or message.is_carry:
                break
            found.append(message)
        return found

    async def _publish(self, message: Message) -> bool:
        """Take step 4: send one message; the process ends when it is not certain that it is in the log, at its end.

        Return whether more may be sent: not where a record of another writer is among ours.
        """
        headers = [(HEADER_NAME, encode_header(message))]
        where = f"{self.topic}[{self.partition}]"
        started = time.perf_counter()
        try:
            offset = await self.send(self.topic, self.partition, bytes(message.tokens), None, headers)
            lost = await self.end.acknowledged(offset, self.leader(), message, self.read)
        except asyncio.CancelledError:
            raise
        except StrayError as error:
            self.on_stray(error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it was: nothing may be sent after a hole
            end_process(f"a message for {where} was not acknowledged", error=error)
        if lost is not None:
            end_process(f"{where} {lost}: it lost its tail")
        self.durable = max(self.durable, message.cursor, key=attrgetter("place"))
        self.messages += 1
        seconds = time.perf_counter() - started
        self._at_once = 1 + int(seconds / FAR_SECONDS)
        metrics.PUBLISH_SECONDS.labels(self.topic).observe(seconds)
        metrics.MESSAGE_BYTES.labels(self.topic).observe(len(message.tokens))
        self.on_durable(message)
        return True


def _size(message: Message) -> int:
    return len(message.tokens) + len(message.open_tokens) + len(message.references)


def joined(messages: Sequence[Message]) -> Message:
    """Return consecutive messages of a chain as one: where messages are cut changes nothing for their readers."""
    if len(messages) == 1:
        return messages[0]
    first, last = messages[0], messages[-1]
    return replace(
        last,
        first=first.first,
        before=first.before,
        tokens=b"".join(message.tokens for message in messages),
        entries=[entry for message in messages for entry in message.entries],
        chains=[chain for message in messages for chain in message.chains],
    )


async def send_letters(send: Send, topic: str, letters: Sequence[tuple[int, WrittenLetter]]) -> None:
    """Send letters to partitions of ``topic``, at least once; return when all in-sync replicas have all of them."""
    for start in range(0, len(letters), LETTERS_AT_ONCE):
        some = letters[start : start + LETTERS_AT_ONCE]
        await asyncio.gather(*(send(topic, number, one.value, one.key, one.headers) for number, one in some))


def written_letters(
    topic: LetterTopic, source: TopicPartition, outcomes: Sequence[Outcome]
) -> list[tuple[int, WrittenLetter]]:
    """Return letters for records of ``source``, dead or filtered out, and the partition of ``topic`` for each."""
    letters = []
    for outcome in outcomes:
        place = RecordPlace(source.topic, source.partition, outcome.record.offset)
        letters.append((letter_partition(place, topic.partitions), letter_of(outcome, place, topic.most_bytes)))
    return letters


def letter_of(outcome: Outcome, place: RecordPlace, most_bytes: int) -> WrittenLetter:
    """Return the letter of a record that is at ``place``, in so many bytes at most."""
    record = outcome.record
    headers = encode_dead_letter(
        place,
        reason=outcome.reason,
        detail=outcome.detail,
        timestamp=record.timestamp,
        exception=outcome.exception,
        original=record.headers,
    )
    return cut_letter(record.key, record.value, headers, most_bytes)
