"""Asking brokers the same again and again, whatever becomes of them meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, SourceError

from ..absence import is_unreached
from ..broker_contact import CONTACT, QUIET_SECONDS
from ..settings import Settings
from .clients import consumer

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
    is one line in the log, ``outage`` and the reason, and another one only when the reason changes. That a broker is
    not reached is a line only where it lasts although another answers: else `OutageLog` says it. Anything else is
    raised.
    """
    loop = asyncio.get_running_loop()
    said = ""
    failing: float | None = None
    while True:
        try:
            async with consumer(settings) as client:
                while True:
                    await ask(client)
                    client.pause(*client.assignment())  # else it would ask the brokers on, for records nobody takes
                    said, failing = "", None
                    await asyncio.sleep(seconds)
        except (*PASSING, *passing) as error:
            reason = str(error) or repr(error)
            failing = loop.time() if failing is None else failing
            if reason != said and (not is_unreached(error) or _lasts(loop.time() - failing)):
                log.warning(outage, error=reason)
                said = reason
            await asyncio.sleep(seconds)


def _lasts(seconds: float) -> bool:
    """Return whether what has failed for ``seconds`` is more than an outage that has just begun, or goes on."""
    return seconds > 2 * QUIET_SECONDS and CONTACT.away_since is None
