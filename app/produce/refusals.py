"""What becomes of something that is no document: it is passed over, sent to the dead letters, or ends the run."""

import asyncio
from typing import Any, Final, Literal

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tokenmill.errors import InputError, TopicError

from ..clients.topics import partition_count
from ..raw.dead_letters import MAX_DETAIL_BYTES, PREFIX
from ..settings import Settings, dead_letter_topic
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


class Refusals:
    """Takes the refusals of a run."""

    def __init__(
        self, client: AIOKafkaProducer, topic: str, on_error: OnError, summary: Summary, *, goes_on: bool
    ) -> None:
        """Take those of a run that another call can go on with, or cannot: what is advised depends on it."""
        self._goes_on = goes_on
        self._client = client
        self._dead = dead_letter_topic(topic)
        self._on_error = on_error
        self._summary = summary
        self._under_way: set[asyncio.Future[Any]] = set()

    async def take(self, refused: Refused) -> None:
        """Count the refusal, and do what is to be done.

        Raises:
            InputError: it ends the run.

        """
        if self._on_error == "fail":
            raise InputError(f"{refused.where}: {refused.why}. {GOES_ON if self._goes_on else BEGINS_ANEW}")
        self._summary.refuse(refused)
        if self._on_error == "dead-letter":
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
        about = {"reason": REASON, "detail": refused.why, "source": refused.where}
        headers = [
            (PREFIX + name, value.encode(errors="replace")[:MAX_DETAIL_BYTES].decode(errors="ignore").encode())
            for name, value in about.items()
        ]
        if len(self._under_way) >= UNDER_WAY:
            await self.settle()
        self._under_way.add(await self._client.send(self._dead, value=refused.data, partition=0, headers=headers))


async def require_dead_letters(settings: Settings, topic: str) -> None:
    """Check that there is a topic for dead letters.

    Raises:
        TopicError: there is none; says how to make it.

    """
    try:
        await partition_count(settings, dead_letter_topic(topic))
    except TopicError as error:
        raise TopicError(f"{error}; `tokenmill topics create` makes it with the others that {topic} needs") from error
