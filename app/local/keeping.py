"""Keeping a local broker up: one that has ended, killed by whatever, is started again."""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from tokenmill.errors import BrokerError

from .broker import Broker

LOOK_SECONDS: Final = 1.0
"""How often its process is looked for: a file and a line of the kernel's."""
PAUSE_SECONDS: Final = 10.0
"""Between two attempts: what keeps it from starting, a full disk or a taken port, takes a person."""
END_SECONDS: Final = 0.2
"""How often a broker that is being started is told to end, when it is no longer wanted."""

log = structlog.get_logger(__name__)


async def keep_broker(broker: Broker, say: Callable[[str], None]) -> NoReturn:
    """Start ``broker`` again whenever it has ended, until cancelled; ``say`` is told of each end and each start.

    On return, which is by cancellation alone, no start is under way: `Broker.stop` is safe then.
    """
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if broker.running:
            continue
        log.error("Kafka ended", directory=str(broker.directory))
        say(f"Kafka ended by itself or was killed ({broker.log_path} may say why); starting it again")
        try:
            await _start(broker)
        except BrokerError as error:
            log.error("Kafka does not start", reason=str(error))  # noqa: TRY400 - the reason is all there is
            say(f"Kafka does not start: {error}; next attempt in {PAUSE_SECONDS:.0f} s")
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            log.info("Kafka started again", servers=broker.bootstrap_servers)
            say(f"Kafka serves again at {broker.bootstrap_servers}")


async def _start(broker: Broker) -> None:
    """Start it in a thread, for that takes seconds; a cancelled start has ended on return.

    Raises:
        BrokerError: as `Broker.start`.

    """
    starting = asyncio.ensure_future(asyncio.to_thread(broker.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            await asyncio.to_thread(broker.kill)  # which ends the wait for it to serve
            await asyncio.wait({starting}, timeout=END_SECONDS)
        starting.exception()  # nobody else asks
        raise
