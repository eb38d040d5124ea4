"""Waiting at the start for what others bring up: brokers, and topics that somebody else creates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from tokenmill.errors import BrokerError, MissingTopicError

from ..broker_contact import REPEAT_SECONDS
from ..settings import Settings

T = TypeVar("T")

FIRST_PAUSE: Final = 0.5
"""Seconds before the second try; doubled each time ..."""
LONGEST_PAUSE: Final = 5.0
"""... up to this: what was waited for is noticed soon."""

log = structlog.get_logger(__name__)


async def patiently(settings: Settings, look: Callable[[], Awaitable[T]]) -> T:
    """Return what ``look`` returns; tried again while no broker answers or a topic is missing.

    For at most ``settings.wait_seconds``, from the first try to the beginning of the last. The log says what is missing
    and for how long it is waited for: at once, when it changes, and once a minute.

    Raises:
        BrokerError, MissingTopicError: what the last try said, when the time is up.

    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.wait_seconds
    pause, said, said_at = FIRST_PAUSE, "", 0.0
    while True:
        try:
            return await look()
        except (BrokerError, MissingTopicError) as error:
            left = deadline - loop.time()
            if left <= 0:
                raise
            if str(error) != said or loop.time() - said_at >= REPEAT_SECONDS:
                said, said_at = str(error), loop.time()
                log.warning("waiting", reason=said, seconds_left=round(left))
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
