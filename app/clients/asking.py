"""Asking brokers the same again and again, whatever becomes of them meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, SourceError

from ..settings import Settings
from .kafka import consumer

PASSING: Final = (BrokerError, KafkaError, SourceError)
"""What heals by itself: no broker, and a topic that moved under the reader."""

log = structlog.get_logger(__name__)


async def keep_asking(
    settings: Settings,
    ask: Callable[[AIOKafkaConsumer], Awaitable[None]],
    seconds: float,
    outage: str,
    passing: tuple[type[Exception], ...] = (),
) -> NoReturn:
    """Call ``ask`` with a consumer, and again ``seconds`` after it returned, until cancelled.

    `PASSING`, and what ``passing`` adds to it, ends the consumer; the next one is made after ``seconds``. Such a time
    is one line in the log, ``outage`` and the reason, and another one only when the reason changes. Anything else is
    raised.
    """
    said = ""
    while True:
        try:
            async with consumer(settings) as client:
                while True:
                    await ask(client)
                    client.pause(*client.assignment())  # else it would ask the brokers on, for records nobody takes
                    said = ""
                    await asyncio.sleep(seconds)
        except (*PASSING, *passing) as error:
            reason = str(error) or repr(error)
            if reason != said:
                log.warning(outage, error=reason)
            said = reason
            await asyncio.sleep(seconds)
