"""What becomes of something that is no document: it is passed over, sent to the dead letters, or ends the run."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tokenmill.errors import InputError, TopicError
from tokenmill.wire.dead_letters import SourcePlace, encode_dead_letter, letter_partition

from ...kafka.topics import partition_count
from ...settings import Settings, dead_letter_topic
from .items import Refused
from .sender import raise_for
from .summary import Summary

OnError = Literal["skip", "dead-letter", "fail"]
UNDER_WAY: Final = 1000
"""Dead letters that are sent and not acknowledged: as many as do not hold the run up."""
REASON: Final = "not_produced"
GOES_ON: Final = (
    "The same command with --on-error skip (or dead-letter) goes on from there; send what you corrected from a file of "
    "its own, for a run whose files have changed cannot go on"
)
BEGINS_ANEW: Final = (
    "What came before it is sent: send it, corrected, and what follows from a file of their own, or all of it again "
    "with --on-error skip (or dead-letter)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run does about something that is no document."""

    on_error: OnError
    run: str
    """Of its dead letters' places."""
    partitions: int = 1
    """Of the dead-letter topic."""
    goes_on: bool = True
    """Whether another call can go on with the run: what is advised depends on it."""


class Refusals:
    """Takes the refusals of a run."""

    def __init__(self, client: AIOKafkaProducer, topic: str, answer: Answer, summary: Summary) -> None:
        """Take those of a run over ``topic``."""
        self._client = client
        self._topic = topic
        self._dead = dead_letter_topic(topic)
        self._answer = answer
        self._summary = summary
        self._under_way: set[asyncio.Future[Any]] = set()

    async def take(self, refused: Refused) -> None:
        """Count the refusal, and do what is to be done.

        Raises:
            InputError: it ends the run.

        """
        if self._answer.on_error == "fail":
            raise InputError(f"{refused.where}: {refused.why}. {GOES_ON if self._answer.goes_on else BEGINS_ANEW}")
        self._summary.refuse(refused)
        if self._answer.on_error == "dead-letter":
            await self._send(refused)

    async def settle(self) -> None:
        """On return all dead letters are acknowledged.

        Raises:
            TopicError: the brokers refused one.
            KafkaTimeoutError: they do not answer.
            ProducerFenced: another producer of the same run has taken over.

        """
        if self._under_way:
            try:
                await asyncio.gather(*self._under_way)
            except KafkaError as error:
                raise_for(self._dead, error)
        self._under_way.clear()

    async def _send(self, refused: Refused) -> None:
        """Send it whole, with a dead letter's headers; it was never in the raw topic, so there is no offset in them."""
        place = SourcePlace(self._topic, self._answer.run, refused.where)
        now = time.time_ns() // 1_000_000
        headers = encode_dead_letter(place, reason=REASON, detail=refused.why, timestamp=now)
        partition = letter_partition(place, self._answer.partitions)
        if len(self._under_way) >= UNDER_WAY:
            await self.settle()
        self._under_way.add(
            await self._client.send(self._dead, value=refused.data, partition=partition, headers=headers)
        )


async def require_dead_letters(settings: Settings, topic: str) -> int:
    """Return the number of partitions of the topic for dead letters.

    Raises:
        TopicError: there is none; says how to make it.

    """
    try:
        return await partition_count(settings, dead_letter_topic(topic))
    except TopicError as error:
        raise TopicError(f"{error}; `tokenmill topics create` makes it with the others that {topic} needs") from error
