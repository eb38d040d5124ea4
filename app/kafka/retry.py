"""Trying again: waiting for brokers and for topics, and what brokers are asked repeatedly."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError, MissingTopicError, SourceError

from ..broker_contact import CONTACT, QUIET_SECONDS, REPEAT_SECONDS, is_unreached
from ..settings import Settings
from ..tasks import Backoff
from .clients import consumer

T = TypeVar("T")

FIRST_PAUSE: Final = 0.5
"""Seconds before the second try; doubled each time ..."""
LONGEST_PAUSE: Final = 5.0
"""... up to this: what was waited for is noticed soon."""
QUIET: Final = "quiet"
"""What somebody who asks again and again returns where nothing goes on."""
QUIET_LOOK_SECONDS: Final = 3.0
"""The longest pause between two looks at something that is quiet: what begins there waits so long, once."""
FAILING: Final[dict[str, str]] = {}
"""What this process asks the brokers for again and again, and does not get now, with the kind of the last error."""
PASSING: Final = (BrokerError, KafkaError, SourceError)
"""What ends by itself: no broker, and a topic that moved under the reader."""

log = structlog.get_logger(__name__)


async def retry(settings: Settings, look: Callable[[], Awaitable[T]]) -> T:
    """Return what ``look`` returns; tried again while no broker answers or a topic is missing, for ``wait_seconds``.

    The log says what is waited for, and for how long: at once, when it changes, and once a minute.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.wait_seconds
    backoff, said, said_at = Backoff(FIRST_PAUSE, LONGEST_PAUSE), "", 0.0
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
            await asyncio.sleep(min(backoff.next(), left))


async def ask_repeatedly(
    settings: Settings,
    ask: Callable[[AIOKafkaConsumer], Awaitable[object]],
    seconds: float,
    outage: str,
    passing: tuple[type[Exception], ...] = (),
    *,
    longest: float = 0.0,
) -> NoReturn:
    """Call ``ask`` with a consumer, and again ``seconds`` after it returned, until cancelled.

    As long as it returns `QUIET`, the pauses double, up to ``longest`` seconds. `PASSING`, and what ``passing`` adds to
    it, ends the consumer; the next one is made after ``seconds``. The log says so once, with ``outage`` and the reason,
    until the reason changes; that a broker is not reached only where it lasts although another answers: else
    `OutageLog` says it. Anything else is raised.
    """
    loop = asyncio.get_running_loop()
    said = ""
    failing: float | None = None
    pauses = Backoff(seconds, max(seconds, longest))
    while True:
        try:
            async with consumer(settings) as client:
                while True:
                    if await ask(client) != QUIET:
                        pauses.reset()
                    client.pause(*client.assignment())  # else it would go on asking for records
                    said, failing = "", None
                    FAILING.pop(outage, None)
                    await asyncio.sleep(pauses.next())
        except (*PASSING, *passing) as error:
            reason = str(error) or repr(error)
            failing = loop.time() if failing is None else failing
            lasts = loop.time() - failing > 2 * QUIET_SECONDS and CONTACT.away_since is None
            if reason != said and (lasts or not is_unreached(error)):
                log.warning(outage, error=reason)
                said = reason
                FAILING[outage] = reason if isinstance(error, BrokerError) else type(error).__name__
            await asyncio.sleep(seconds)
