"""Which Faust the transport was written for: its version, and every private part that is overridden or used there.

Checked when the transport is imported: an override that a new version no longer calls would be silent.
"""

from typing import Final

import aiokafka
import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from mode.services import Service
from mode.utils.queues import FlowControlQueue

from ..kafka.cluster import Attributes, Parts, differences

VERSIONS: Final = (
    ("faust-streaming", lambda: faust.__version__, "0.15.3"),
    ("aiokafka", lambda: aiokafka.__version__, "0.14.0"),
)
"""Library, what is installed, and what is expected."""

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
    (AIOKafkaConsumer, "pause"): ["self", "partitions"],
    (AIOKafkaConsumer, "seek"): ["self", "partition", "offset"],
    (Assignment, "state_value"): ["self", "tp"],
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
    Fetcher: ["_fetch_min_bytes", "_max_partition_fetch_bytes"],
    GroupCoordinator: ["member_id"],
    SubscriptionState: ["subscription"],
    Subscription: ["assignment"],
    TopicPartitionState: ["has_valid_position", "position"],
}
"""The attributes that it reads or sets. What is asked about cluster and connections: `tokenmill.app.kafka.cluster`."""


def check_faust() -> None:
    """Check that Faust is the version, and that it and aiokafka have the parts, that the transport was written for.

    Raises:
        ImportError: they are not; the message says what was expected.

    """
    for name, installed, expected in VERSIONS:
        if installed() != expected:
            raise ImportError(f"tokenmill.app.worker.transport was written for {name} {expected}, not {installed()}")
    if changed := differences({**OVERRIDDEN, **CALLED}, ATTRIBUTES):
        versions = " and ".join(f"{name} {expected}" for name, _, expected in VERSIONS)
        raise ImportError(f"Faust or aiokafka changed {', '.join(changed)}: install {versions}")
