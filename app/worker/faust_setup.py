"""Faust's settings for both apps, each with its reason; and which parts of Faust the transport was written for.

Every private part that is overridden or used is checked when the transport is imported: an override that is never
called would be silent. Other versions that have all parts are used, with a warning (`warn_of_versions`).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiokafka
import faust
import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from mode.services import Service
from mode.utils.queues import FlowControlQueue

from ..kafka.clients import METADATA_MAX_AGE_MS, RECORD_OVERHEAD_BYTES
from ..kafka.cluster import Attributes, Parts, differences
from ..kafka.security import password, ssl_context
from ..kafka.topics import needed_topics
from ..settings import ConnectionSettings, Settings

log = structlog.get_logger(__name__)

VERSIONS: Final = (
    ("faust-streaming", lambda: faust.__version__, "0.15.3"),
    ("aiokafka", lambda: aiokafka.__version__, "0.14.0"),
)
"""Library, the version that is installed, and the one that all tests ran with."""

OVERRIDDEN: Final[Parts] = {
    (driver.ConsumerRebalanceListener, "on_partitions_assigned"): ["self", "assigned"],
    (driver.AIOKafkaConsumerThread, "_create_worker_consumer"): ["self", "transport"],
    (driver.AIOKafkaConsumerThread, "_fetch_records"): [
        *("self", "consumer", "active_partitions", "timeout", "max_records"),
    ],
    (driver.Consumer, "RebalanceListener"): ["thread"],
    (driver.Consumer, "_new_consumer_thread"): ["self"],
    (driver.Consumer, "verify_event_path"): ["self", "now", "tp"],
    (BaseConsumer, "perform_seek"): ["self"],
    (BaseConsumer, "on_partitions_revoked"): ["self", "revoked"],
    (BaseConsumer, "_drain_messages"): ["self", "fetcher"],
    (BaseConsumer, "ack"): ["self", "message"],
    (BaseConsumer, "_filter_tps_with_pending_acks"): ["self", "topics"],
    (BaseConsumer, "_new_offset"): ["self", "tp"],
    (driver.Producer, "_new_producer"): ["self", "transactional_id"],
    (driver.Producer, "_settings_extra"): ["self"],
    (Conductor, "on_partitions_assigned"): ["self", "assigned"],
    (driver.Transport, "Conductor"): ["app", "kwargs"],
    (driver.Transport, "Consumer"): ["args", "kwargs"],
    (driver.Transport, "Producer"): ["transport", "loop", "kwargs"],
    (faust.App, "on_first_start"): ["self"],
    (faust.App, "on_stop"): ["self"],
    (faust.App, "_new_transport"): ["self"],
    (faust.App, "_new_producer_transport"): ["self"],
}
"""What the transport overrides, and the parameters of each."""

CALLED: Final[Parts] = {
    (BaseConsumer, "_getmany"): ["self", "active_partitions", "timeout"],
    (BaseConsumer, "_get_active_partitions"): ["self"],
    (BaseConsumer, "on_buffer_full"): ["self", "tp"],
    (BaseConsumer, "on_buffer_drop"): ["self", "tp"],
    (driver.AIOKafkaConsumerThread, "call_thread"): ["self", "fun", "args", "kwargs"],
    (driver.AIOKafkaConsumerThread, "_ensure_consumer"): ["self"],
    (driver.Producer, "_ensure_producer"): ["self"],
    (faust.App, "create_event"): ["self", "key", "value", "headers", "message"],
    (FlowControlQueue, "put_nowait_enhanced"): ["self", "value", "on_pressure_high", "on_pressure_drop"],
    (ConsumerMessage, "__init__"): [
        *("self", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers", "key", "value", "checksum"),
        *("serialized_key_size", "serialized_value_size", "tp", "time_in", "time_out", "time_total", "generation_id"),
    ],
    (AIOKafkaConsumer, "highwater"): ["self", "partition"],
    (AIOKafkaConsumer, "last_stable_offset"): ["self", "partition"],
    (AIOKafkaConsumer, "pause"): ["self", "partitions"],
    (AIOKafkaConsumer, "seek"): ["self", "partition", "offset"],
    (Assignment, "state_value"): ["self", "tp"],
    (Conductor, "discard"): ["self", "topic"],
}
"""What it calls that is private, or of which more is wanted than is documented."""

ATTRIBUTES: Final[Attributes] = {
    Service: ["_stopped"],
    BaseConsumer: ["can_resume_flow", "flow_active"],
    driver.AIOKafkaConsumerThread: ["_consumer"],
    Conductor: ["_tp_index"],
    AIOKafkaConsumer: [
        *("_auto_offset_reset", "_coordinator", "_fetch_max_wait_ms", "_fetcher", "_isolation_level", "_subscription"),
        "_value_deserializer",
    ],
    Fetcher: ["_fetch_max_wait_ms", "_fetch_min_bytes", "_max_partition_fetch_bytes"],
    GroupCoordinator: ["member_id"],
    SubscriptionState: ["subscription"],
    Subscription: ["assignment"],
    TopicPartitionState: ["has_valid_position", "position"],
}
"""The attributes that it reads or sets. What is asked about cluster and connections: `app.kafka.cluster`."""


def check_faust() -> None:
    """Check that Faust and aiokafka have the parts that the transport was written for, whatever their versions.

    Raises:
        ImportError: a part is missing or takes other parameters; the message names it and the versions that have it.

    """
    if changed := differences({**OVERRIDDEN, **CALLED}, ATTRIBUTES):
        versions = " and ".join(f"{name} {expected}" for name, _, expected in VERSIONS)
        raise ImportError(f"Faust or aiokafka changed {', '.join(changed)}: install {versions}")


def warn_of_versions() -> None:
    """Log one warning where Faust or aiokafka has another version than the tested one: it has the parts, no more."""
    others = [f"{name} {found()} (tested: {tested})" for name, found, tested in VERSIONS if found() != tested]
    if others:
        log.warning("libraries have other versions than the tested ones: run `make test-newest`", libraries=others)


FETCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one partition in one fetch (compressed, as in the log). Smaller ones cost more for what is done
once a fetch, larger ones for memory that the processor's caches do not hold: at 1 and 8 MiB, a sixth more."""
FETCHED_BYTES: Final = 8 * FETCH_BYTES
"""Most bytes of all partitions of a worker in one fetch, of which each gets its share. Bounds memory, with queues."""
LEAST_FETCH_BYTES: Final = 1280 * 1024
"""A share is no smaller: a message of the usual size, and its header. Kafka gives what is larger all the same, but of
one partition in a fetch."""
QUEUED_BATCHES: Final = 3
"""Size of an agent's queue, in batches; its high-water mark is two. Bounds memory with the size of a fetch."""
NO_DIRECTORY: Final = Path(os.devnull) / "faust"
"""Where Faust keeps tables; there are none, and below a device there is nothing that anybody could put there."""
NEVER_SECONDS: Final = 10 * 86400.0
"""Faust lets a worker leave its group when nobody asks it for records for this long, and never lets it return."""
REQUEST_SECONDS: Final = 10.0
"""Shortest time after which an unanswered request is given up. A connection that says nothing any more is noticed by
that alone, and Faust's 90 s would let a worker stand for as long. Twice the session time-out where that is more: the
brokers hold a member's request to join for as long as one session."""


def fetch_share(partitions: int) -> int:
    """Return the most bytes that a fetch brings of each of ``partitions``."""
    return max(LEAST_FETCH_BYTES, min(FETCH_BYTES, FETCHED_BYTES // max(1, partitions)))


def faust_options(settings: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `faust.App`.

    Raises:
        SettingsError: a file that a setting names cannot be used.

    """
    brokers = ";".join(f"aiokafka://{address}" for address in settings.bootstrap_servers.split(","))
    request_seconds = max(REQUEST_SECONDS, 2 * settings.session_timeout)
    largest = max(topic.max_message_bytes for topic in needed_topics(settings)) + RECORD_OVERHEAD_BYTES
    return {
        "broker": brokers,
        **_security(settings),
        "key_serializer": "raw",
        "value_serializer": "raw",
        "store": "memory://",
        "datadir": NO_DIRECTORY,
        "web_enabled": False,  # Faust's page says OK whatever happens
        "topic_disable_leader": True,  # no table, so no leader topic
        "topic_allow_declare": False,  # topics are made by `tokenmill topics`, with the settings that they need
        "table_standby_replicas": 0,  # plain round-robin assignment
        "stream_wait_empty": False,  # a rebalance does not wait for events: positions come from the data
        "stream_buffer_maxsize": QUEUED_BATCHES,
        "consumer_max_fetch_size": FETCH_BYTES,  # until partitions are assigned
        "consumer_auto_offset_reset": "earliest",  # never used: the transport sets "none"
        "consumer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_linger": 0,  # one message is in flight: waiting for a second one would only delay it
        "producer_max_request_size": largest,
        "producer_request_timeout": request_seconds,
        "broker_request_timeout": request_seconds,
        "broker_session_timeout": settings.session_timeout,
        "broker_rebalance_timeout": settings.session_timeout,
        "broker_heartbeat_interval": settings.session_timeout / 10,
        "broker_max_poll_interval": NEVER_SECONDS,
        "broker_commit_interval": 1.0,
        "broker_check_crcs": True,
    }


def _security(settings: ConnectionSettings) -> Mapping[str, Any]:
    """Return the keyword arguments by which a Faust app encrypts and logs in.

    Raises:
        SettingsError: as `client_security`.

    """
    context = ssl_context(settings) if settings.encrypts else None
    if settings.logs_in:
        credentials = SASLCredentials(
            username=settings.sasl_username,
            password=password(settings, "sasl"),
            mechanism=settings.sasl_mechanism,
            ssl_context=context,
        )
        return {"broker_credentials": credentials}
    return {"broker_credentials": SSLCredentials(context)} if context else {}
