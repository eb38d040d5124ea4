"""Kafka clients outside Faust: made here and nowhere else, with the defaults that the promises need.

Also waiting for brokers and for topics, and what brokers are asked repeatedly.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient

from tokenmill.documents import SourceRecord
from tokenmill.errors import BrokerError, MissingTopicError, MovedError, SettingsError, SourceError, TopicError

from ..broker_contact import CONTACT, QUIET_SECONDS, REPEAT_SECONDS, is_unreached, no_answer
from ..settings import ConnectionSettings, Settings
from ..tasks import Backoff
from .cluster import ends_of, prepare, start
from .fetched_batches import packed_batches, unpacked
from .security import client_security, refused_time, why_not

METADATA_MAX_AGE_MS: Final = 3000
"""How old a client's picture of the cluster may be. After a broker restart the picture can be empty; with the default
of five minutes, a group stays without partitions for as long."""
STOP_SECONDS: Final = 5.0
"""How long a client may take to stop while brokers answer; without a broker, aiokafka would wait for ever."""
FETCHER_TURN_MS: Final = 1000
"""How often aiokafka's fetcher looks for work that nothing has told it of: an idle client does little else."""
DELIVERY_MS: Final = 120_000
"""How long a record may wait for its acknowledgement, as in Kafka's own producer (delivery.timeout.ms). aiokafka's 40 s
are less than a broker may take to restart on a busy machine."""
REQUEST_MS: Final = 20_000
"""How long other requests may wait for an answer; aiokafka's 40 s are long on a connection that is half open."""
RECORD_OVERHEAD_BYTES: Final = 64 * 1024
"""Room for key, headers and framing in addition to the largest value that a producer here sends."""
Send: TypeAlias = Callable[[str, int, bytes | None, bytes | None, Sequence[tuple[str, bytes]]], Awaitable[int]]
"""Sends one record (topic, partition, value, key, headers) and returns its offset once all in-sync replicas have it;
raises when they may not. As `tokenmill.app.worker.transport.BatchApp.send_record`."""
T = TypeVar("T")

log = structlog.get_logger(__name__)


class _InvalidRecordError(errors.BrokerResponseError):  # type: ignore[misc]  # untyped there
    """What brokers answer since Kafka 2.4 for a record that the topic does not take; aiokafka does not know it."""

    errno = 87


InvalidRecordError: Final[type[errors.KafkaError]] = errors.kafka_errors.setdefault(87, _InvalidRecordError)
AGAIN: Final = (errors.InvalidTimestampError, errors.CorruptRecordException)
"""What may have ended when the same is sent again: a record that waited for a broker is old, a network changes bits."""
REFUSALS: Final = (
    *(*AGAIN, InvalidRecordError, errors.MessageSizeTooLargeError, errors.PolicyViolationError),
    *(errors.RecordListTooLargeError, errors.UnsupportedForMessageFormatError),
)
"""What brokers answer because of the records of a batch, of which they have taken none."""
REFUSED: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)


def connection(settings: ConnectionSettings) -> dict[str, Any]:
    """Return the keyword arguments by which every aiokafka client reaches the brokers."""
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        **client_security(settings),
    }


@contextmanager
def broker_errors(settings: ConnectionSettings) -> Iterator[None]:
    """Turn "no broker answers" and "you may not", whatever aiokafka calls it, into one error that says what to do."""
    try:
        yield
    except errors.InvalidTimestampError as error:
        raise refused_time() from error
    except REFUSED as error:
        raise not_allowed(settings, str(error)) from error
    except errors.KafkaError as error:
        if not is_unreached(error):
            raise
        servers = settings.bootstrap_servers
        start_one = "; start one with `tokenmill broker start`, or set bootstrap_servers"
        raise BrokerError(no_answer(servers) + ("" if CONTACT.unreached_from(servers) else start_one)) from error


@contextmanager
def sending_to(topic: str, instead: str = "lower max_record_bytes") -> Iterator[None]:
    """Turn brokers' refusal of a record into an error that says what to do: raise max.message.bytes, or ``instead``."""
    try:
        yield
    except (errors.ProducerFenced, errors.KafkaTimeoutError, *REFUSED):
        raise
    except errors.InvalidTimestampError as error:
        raise refused_time(topic) from error
    except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
        raise TopicError(f"topic {topic} refuses a record: raise its max.message.bytes, or {instead}") from error
    except InvalidRecordError as error:
        raise TopicError(
            f"topic {topic} refuses a record, as compacted topics do without a key: set its cleanup.policy=delete"
        ) from error
    except errors.KafkaError as error:
        raise TopicError(f"topic {topic} refuses records: {error}") from error


def not_allowed(settings: ConnectionSettings, what: str) -> SettingsError:
    """Return the error for a right that this client lacks."""
    return SettingsError(
        f"the brokers at {settings.bootstrap_servers} do not allow this to {settings.sasl_username or 'us'} ({what}): "
        'grant it (docs/settings.md, "Rights"), or log in as somebody else'
    )


async def require_group(settings: ConnectionSettings, group: str) -> None:
    """Check that we are let into a consumer group: a worker that is not would do nothing, in silence."""
    async with admin(settings) as client:
        with suppress(errors.GroupCoordinatorNotAvailableError, errors.GroupLoadInProgressError):  # rights come first
            for answer in await client.describe_consumer_groups([group]):
                if any(described[0] == errors.GroupAuthorizationFailedError.errno for described in answer.groups):
                    raise not_allowed(settings, f"group {group}")


def producer(
    settings: Settings, *, max_message_bytes: int = 0, **options: Any
) -> AbstractAsyncContextManager[AIOKafkaProducer]:
    """Yield a started idempotent producer: what it acknowledged is in the log once, and its order is kept.

    It sends at once and takes values of ``max_message_bytes`` (or ``max_record_bytes`` if that is more). ``options`` go
    to aiokafka. Await what you sent before the block ends: what is unacknowledged then is given ``STOP_SECONDS``.
    Raises BrokerError where no broker answers; and SettingsError where the brokers refuse us, or are not believed.
    """
    largest = max(max_message_bytes, settings.max_record_bytes) + RECORD_OVERHEAD_BYTES
    fixed = {"acks": "all", "enable_idempotence": True, "linger_ms": 0, "max_request_size": largest}
    fixed["request_timeout_ms"] = DELIVERY_MS
    return _running(settings, lambda: AIOKafkaProducer(**connection(settings), **(fixed | options)))


def consumer(settings: Settings, **options: Any) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
    """Yield a started consumer of no group or topic, to `assign` and `seek`: committed records only; it never jumps."""
    fixed = {
        "isolation_level": "read_committed",
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 50,  # other requests on the connection wait behind it
        "consumer_timeout_ms": FETCHER_TURN_MS,
        "request_timeout_ms": REQUEST_MS,
        "value_deserializer": packed_batches,
    }
    return _running(settings, lambda: AIOKafkaConsumer(**connection(settings), **(fixed | options)))


def admin(settings: ConnectionSettings) -> AbstractAsyncContextManager[AIOKafkaAdminClient]:
    """Yield a started admin client. Raises as `producer`."""
    return _running(settings, lambda: AIOKafkaAdminClient(**connection(settings), request_timeout_ms=REQUEST_MS))


@asynccontextmanager
async def _running(settings: ConnectionSettings, make: Callable[[], Any]) -> AsyncIterator[Any]:
    with broker_errors(settings):
        client = make()
        prepare(client)
        try:
            if settings.sasl_mechanism == "OAUTHBEARER" and (reason := await why_not(settings)):
                raise reason  # that its token is refused, aiokafka does not even notice
            try:
                async with asyncio.timeout(DELIVERY_MS / 1000):  # an idempotent producer would try for ever
                    await start(client)
            except TimeoutError as error:
                raise errors.KafkaTimeoutError(str(error)) from error
            except errors.KafkaConnectionError:  # aiokafka only logs why
                if reason := await why_not(settings):
                    raise reason from None
                raise
            yield client
        finally:
            await _end(client.close if isinstance(client, AIOKafkaAdminClient) else client.stop)


async def _end(stop: Callable[[], Awaitable[None]]) -> None:
    """Stop a client; where no broker can be told, the caller goes on, or its error does."""
    # A task of its own: aiokafka's consumer may end by cancelling itself, which must not look like an end of ours.
    stopping = asyncio.ensure_future(stop())
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        while not stopping.done() and (waited := loop.time() - began) < STOP_SECONDS:
            await asyncio.wait({stopping}, timeout=0.25)  # between two looks at the contact
            if CONTACT.is_deaf(waited):
                break
    finally:
        stopping.cancel()
    if stopping.done() and not stopping.cancelled():
        stopping.result()


async def offsets(client: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Return for each partition the offset of its first record and the one after its last committed record."""
    first, end = await client.beginning_offsets(partitions), await client.end_offsets(partitions)
    return {partition: (first[partition], end[partition]) for partition in partitions}


class LastLook:
    """What partitions held at the last look that left nothing to do: asking for offsets costs a tenth of a look."""

    def __init__(self) -> None:
        self._bounds: dict[TopicPartition, tuple[int, int]] = {}
        self._now: dict[TopicPartition, tuple[int, int]] = {}
        self._until = 0.0

    async def finds_nothing(self, client: AIOKafkaConsumer, partitions: list[TopicPartition]) -> bool:
        """Return whether a look at these partitions can be spared; call `took` after one that was not."""
        self._now = await offsets(client, partitions) if partitions else {}
        return bool(partitions) and self._now == self._bounds and time.monotonic() < self._until

    def took(self, *, rests: bool) -> None:
        """Take note of a look that has ended; ``rests``: it left nothing to do."""
        self._bounds = self._now if rests else {}
        self._until = time.monotonic() + WHOLE_LOOK_SECONDS


async def read_range(
    client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[SourceRecord]:
    """Yield the committed records of a partition with ``start <= offset < end``, then return.

    Ends at ``end`` also where the last offsets before it hold no records (transaction markers, compaction). The
    consumer is this iterator's alone until it is done, and keeps the partition assigned afterwards. Raises MovedError
    where the log does not hold these offsets: it starts after ``start``, or ends before ``end``.
    """
    async for records in read_batches(client, partition, start, end):
        for record in records:
            yield record


async def read_partition(client: AIOKafkaConsumer, partition: TopicPartition) -> AsyncIterator[SourceRecord]:
    """Yield all committed records that a partition holds now; else as `read_range`."""
    async for record in read_range(client, partition, *(await offsets(client, [partition]))[partition]):
        yield record


async def read_batches(
    client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[Sequence[SourceRecord]]:
    """Yield what `read_range` does, as lists that are not empty: all that a fetch brought at once; raises alike."""
    if start >= end:
        return  # nothing to read; and aiokafka's stop waits for ever on a partition that was never polled
    client.assign([partition])
    client.seek(partition, start)
    while await client.position(partition) < end:
        try:
            batches = await client.getmany(partition, timeout_ms=500)  # then it is asked what it holds
        except (errors.OffsetOutOfRangeError, errors.NoOffsetForPartitionError):
            batches = {}
        fetched = batches.get(partition, ())
        if not fetched:
            next_, held = await client.position(partition), (await offsets(client, [partition]))[partition]
            if next_ < held[0] or end > held[1]:
                raise MovedError(
                    f"{partition.topic}[{partition.partition}] holds offsets {held[0]} to {held[1]}, and {next_} to "
                    f"{end} are wanted: its retention has passed them, or the topic was created again"
                )
        if records := unpacked(fetched, end):
            yield records


WHOLE_LOOK_SECONDS: Final = 10.0
"""After as long all is looked at anyway: a topic has new partitions, or was made again and is as long as it was."""
OPEN_SECONDS: Final = 5.0
"""A transaction that is younger is not spoken of: most producers that use transactions end several a second."""


async def open_transactions(settings: Settings, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, float]:
    """Return since when transactions have been open for `OPEN_SECONDS`; none where this login may only write."""
    with suppress(SettingsError):
        async with consumer(settings) as client:
            found = await ends_of(client, partitions)
        since = await begun(settings, {tp: stable for tp, (end, stable) in found.items() if stable < end})
        return {tp: at for tp, at in since.items() if time.time() - at >= OPEN_SECONDS}
    return {}


async def begun(settings: Settings, first: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """Return when open transactions began, by the time of their ``first`` records, in seconds since 1970."""
    found = {}
    if first:
        async with consumer(settings, isolation_level="read_uncommitted") as client:
            for tp, offset in first.items():
                with suppress(MovedError):
                    async for record in read_range(client, tp, offset, offset + 1):
                        now = time.time()  # that of a record without a time, or with one to come
                        found[tp] = min(record.timestamp / 1000, now) if record.timestamp > 0 else now
    return found


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
PASSING: Final = (BrokerError, errors.KafkaError, SourceError)
"""What ends by itself: no broker, and a topic that moved under the reader."""


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
