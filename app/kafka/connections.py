"""Connections while brokers are away: pauses that grow, nothing left behind, and knowing when a broker answered.

aiokafka lacks seven things, with or without the fast path:

1. It connects again as soon as a client needs a broker, several times a second for each client of a process. Where
   connections are refused, that costs little. Where they are accepted and reset at once, as by a proxy whose brokers
   are away, each costs two sockets, and memory: the error holds the frames that it passed, these hold the connection
   with its buffer, and the connection holds the error. Python frees such a cycle only in a garbage collection, and
   here it collects seldom (`app.processes`). So `connect` pauses, and frees what the error holds.
2. It does not say when a broker answered: `ContactProtocol` does (`app.broker_contact`).
3. It asks for metadata again at once when it got none: a producer with something to send does so thousands of times a
   second, which takes a whole core for as long as the brokers are away (`aiokafka.producer.sender`, where it waits for
   unknown leaders).
4. It asks again on the same connection when no answer came in time, though it closes one on which any other request
   was not answered. If that connection is dead without a word (a router that forgot it, a host that vanished), a
   client that needs metadata first waits for as long as TCP tries: a quarter of an hour.
5. A client without topics requests the metadata of all topics at each refresh; with some thousands of partitions that
   takes a tenth of a core, and as much of the broker's. `patch_metadata_requests` lets it request those of none.
6. It cannot read all that brokers take: `app.kafka.fetched_batches` does.
7. A client whose start is cancelled forgets the connection by which it asked for the brokers: `start` closes it.
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.client
import aiokafka.conn
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol, create_conn
from aiokafka.errors import KafkaConnectionError

from ..backoff import Backoff
from ..broker_contact import CONTACT
from .cluster import Owner, client_of, close_unanswered, require_tested
from .fetched_batches import read_as_brokers_do

FIRST_PAUSE: Final = 0.1
"""Seconds between the first attempt that failed at an address and the next; doubled each time ..."""
LONGEST_PAUSE: Final = 2.0
"""... up to this: a broker that is back is noticed soon."""
QUICK_LOOKS: Final = 5
"""Requests for metadata that may follow each other at once: a client that starts needs two or three."""
METADATA_PAUSE: Final = 0.1
"""Seconds that each then waits, as aiokafka's other requests do between two tries (retry_backoff_ms)."""


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """Attempts at one address, of which the last failed."""

    backoff: Backoff
    until: float
    """No attempt is made before this moment of the clock, in seconds."""
    reason: str


class Pauses:
    """Which addresses are left alone for the moment; of all clients of a process together, in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[tuple[str, int], FailedAttempts] = {}

    def left(self, host: str, port: int) -> tuple[float, str]:
        """Return for how many seconds an address is still left alone, and why; 0 where it may be tried."""
        failed = self._failed.get((host, port))
        return (max(0.0, failed.until - self._clock()), failed.reason) if failed is not None else (0.0, "")

    def failed(self, host: str, port: int, reason: str) -> None:
        """Note that an attempt failed. One that began before the last pause did makes it no longer."""
        before = self._failed.get((host, port))
        if before is not None and before.until > self._clock():
            return
        backoff = before.backoff if before is not None else Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._failed[host, port] = FailedAttempts(backoff, self._clock() + backoff.next(), reason)

    def connected(self, host: str, port: int) -> None:
        """Note that a broker has answered there."""
        self._failed.pop((host, port), None)


PAUSES: Final = Pauses()

_OPENED: Final = ContextVar[list[AIOKafkaConnection] | None]("opened at the settings' addresses", default=None)
"""By the start of a client, in this task."""


async def connect(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    """Return a connection on which a broker has answered; used in place of aiokafka's ``create_conn``.

    While an address is left alone, a client that starts waits, and one that has several brokers to talk to is refused
    at once: it may reach another one. Raises OSError or KafkaError as aiokafka's; what they hold of the attempt is
    freed.
    """
    pause, reason = PAUSES.left(host, port)
    if pause and options.get("on_close") is not None:
        raise KafkaConnectionError(f"{host}:{port} is not tried for {pause:.1f} s: {reason}")
    await asyncio.sleep(pause)
    named, address, began = options.get("on_close") is not None, f"{host}:{port}", time.monotonic()
    if named:  # by a broker's answer, not by the settings
        CONTACT.connects(address)
    try:
        connection = await create_conn(host, port, **options)
    except (Exception, asyncio.CancelledError) as error:
        reason = str(error) or f"no answer in {time.monotonic() - began:.0f} s"
        if named:
            CONTACT.refused(address, reason)
        if not isinstance(error, asyncio.CancelledError):
            PAUSES.failed(host, port, reason)
            release(error)
        raise
    PAUSES.connected(host, port)
    CONTACT.answered(address)
    if not named and (opened := _OPENED.get()) is not None:
        opened.append(connection)
    return connection


async def start(owner: Owner) -> None:
    """Start a client; what its start opened is closed where that ends in an error. Raises as its own ``start``."""
    opened: list[AIOKafkaConnection] = []
    before = _OPENED.set(opened)
    try:
        await owner.start()
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    finally:
        _OPENED.reset(before)


def release(error: BaseException) -> None:
    """Let an error, and those that caused it, hold nothing of the places where they were raised."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


class ContactProtocol(AIOKafkaProtocol):  # type: ignore[misc]  # untyped there
    """aiokafka's protocol; notes when bytes of an answer arrive."""

    def data_received(self, data: bytes) -> None:
        """Note it, and take them as aiokafka does."""
        CONTACT.heard()
        super().data_received(data)


def prepare(owner: Owner) -> None:
    """Give a client that has not started what aiokafka lacks; call this for every client that is made.

    Points 1, 2 and 6 are for all clients of the process, from the first call on; the others are for this client. Raises
    ImportError where aiokafka has another version than the one that this was written for.
    """
    if aiokafka.client.create_conn is not connect:
        require_tested("aiokafka", aiokafka.__version__)
        aiokafka.client.create_conn = connect
    if aiokafka.conn.AIOKafkaProtocol is AIOKafkaProtocol:  # else it is the fast path's, which notes answers as well
        aiokafka.conn.AIOKafkaProtocol = ContactProtocol
    read_as_brokers_do()
    patch_metadata_requests(client_of(owner))


def patch_metadata_requests(client: AIOKafkaClient) -> None:
    """Change how a client requests metadata: points 3 to 5 above.

    It pauses between requests that follow each other at once. After one without an answer, it closes the connections on
    which requests were not answered in time, so that the next request has others. As long as it uses no topic, it
    requests the brokers alone.
    """
    ask = client._metadata_update  # noqa: SLF001 - aiokafka has no setting for it, as for no topics below
    loop = asyncio.get_running_loop()
    ended, quick = -METADATA_PAUSE, 0

    async def ask_after_a_pause(cluster: ClusterMetadata, topics: Collection[str] | None) -> bool:
        nonlocal ended, quick
        quick = quick + 1 if loop.time() - ended < METADATA_PAUSE else 0
        if quick >= QUICK_LOOKS:
            await asyncio.sleep(METADATA_PAUSE)
            quick = QUICK_LOOKS - 1
        # None means all topics. aiokafka tests the truth of `topics`: an empty set would request all topics, too. An
        # empty iterator is true, and becomes an empty list. A consumer of a pattern would need all: no client of ours
        # is one.
        found: bool = await ask(cluster, iter(()) if topics is not None and not topics else topics)
        ended = loop.time()
        if not found:
            close_unanswered(client)
        return found

    client._metadata_update = ask_after_a_pause  # noqa: SLF001
