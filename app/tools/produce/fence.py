"""One producer at a time for a run: whoever was there before can write nothing any more.

A killed process may have left batches on their way, in sockets and in the brokers' queues. Were they written after its
successor has looked where the run stands, documents would come twice. So a run has a transactional id of its own. Its
next owner asks for it, which raises the epoch, and ends an empty transaction over all partitions: the brokers put a
marker into each, and from then on refuse whatever an earlier owner sends (KIP-98). When the id is granted once more,
the markers are in the logs of all replicas. Records are then sent outside of any transaction, as those of any
idempotent producer: readers need not wait for a commit, and nobody is held up when this process dies.

aiokafka offers no transaction without records and no way back from transactions, so two of its private parts are
touched here, and nowhere else; the version is pinned, and `tests/app/tools/produce/test_fence.py` shows that it works.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import ProducerFenced, TransactionalIdAuthorizationFailed

from tokenmill.errors import BrokerError, InputError

from ...kafka.clients import producer
from ...settings import Settings

OPEN_MILLISECONDS: Final = 10_000
"""After which the brokers end the empty transaction of a process that was killed in the middle of it; readers of the
partitions wait so long."""
FENCE_SECONDS: Final = 60.0
"""How long the brokers may take to end whatever the name was used for; takes a fraction of a second."""


@asynccontextmanager
async def fenced_producer(
    settings: Settings, name: str, partitions: Mapping[str, int], **options: Any
) -> AsyncIterator[AIOKafkaProducer]:
    """Yield an idempotent producer, as `tokenmill.app.kafka.clients.producer` does; earlier ones of this name give way.

    ``partitions`` names the topics, with the number of their partitions: there they can write nothing any more.

    Raises:
        BrokerError: no broker answers.
        InputError: the brokers do not allow the name; or, in the block, a later one took over.

    """
    with _fenced(name):
        await _end_earlier(settings, name, partitions)
        async with producer(settings, transactional_id=name, **options) as client:
            client._txn_manager.transactional_id = None  # noqa: SLF001 - see above
            yield client


async def _end_earlier(settings: Settings, name: str, partitions: Mapping[str, int]) -> None:
    """Take the name over, and put a marker into each partition; they are there when the name is granted again."""
    try:
        client_of = producer(settings, transactional_id=name, transaction_timeout_ms=OPEN_MILLISECONDS)
        async with asyncio.timeout(FENCE_SECONDS), client_of as client:
            await client.begin_transaction()
            manager = client._txn_manager  # noqa: SLF001 - see above
            for topic, count in partitions.items():
                for partition in range(count):
                    manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))
            await client.abort_transaction()
    except TimeoutError as error:
        raise BrokerError(
            f"the brokers do not serve the transactional id {name}: see their logs for __transaction_state (a single "
            "broker needs transaction.state.log.replication.factor=1), or do without: --no-resume"
        ) from error


@contextmanager
def _fenced(name: str) -> Iterator[None]:
    try:
        yield
    except TransactionalIdAuthorizationFailed as error:
        raise InputError(
            f"the brokers do not allow the transactional id {name}: allow it, or do without: --no-resume"
        ) from error
    except ProducerFenced as error:
        raise InputError(
            "another tokenmill produce with the same command has taken over, so this one ends; let that one go on"
        ) from error
