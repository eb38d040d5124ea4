"""Waiting at the start for what others bring up: brokers, and topics that somebody else creates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from tokenmill.errors import BrokerError, MissingTopicError

from ..settings import Settings

T = TypeVar("T")

FIRST_PAUSE: Final = 0.5
"""Seconds before the second try; doubled each time ..."""
LONGEST_PAUSE: Final = 5.0
"""... up to this: what was waited for is noticed soon, and the log stays readable."""

log = structlog.get_logger(__name__)


async def patiently(settings: Settings, look: Callable[[], Awaitable[T]]) -> T:
    """Return what ``look`` returns; tried again while no broker answers or a topic is missing.

    For at most ``settings.wait_seconds``, from the first try to the beginning of the last. Each try that failed is a
    line in the log, which says what is missing and for how long it is waited for.

    Raises:
        BrokerError, MissingTopicError: what the last try said, when the time is up.

    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.wait_seconds
    pause = FIRST_PAUSE
    while True:
        try:
            return await look()
        except (BrokerError, MissingTopicError) as error:
            left = deadline - loop.time()
            if left <= 0:
                raise
            log.warning("waiting", reason=str(error), seconds_left=round(left))
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
