"""Which Faust `app.transport` was written for: its version, and every private part that is overridden or called there.

Checked when the transport is imported: an override that a new version no longer calls would be silent.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Final

import aiokafka
import faust
from aiokafka import AIOKafkaConsumer
from faust.transport.consumer import Consumer as BaseConsumer
from faust.transport.drivers import aiokafka as driver
from mode.utils.queues import FlowControlQueue

VERSIONS: Final = (
    ("faust-streaming", lambda: faust.__version__, "0.15.3"),
    ("aiokafka", lambda: aiokafka.__version__, "0.14.0"),
)
"""Library, what is installed, and what is expected."""

Parts = Mapping[tuple[type, str], Sequence[str]]

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
    (AIOKafkaConsumer, "highwater"): ["self", "partition"],
    (AIOKafkaConsumer, "pause"): ["self", "partitions"],
    (AIOKafkaConsumer, "seek"): ["self", "partition", "offset"],
}
"""What it calls that is private, or of which more is wanted than is documented."""


def check_faust() -> None:
    """Check that Faust is the version, and that it and aiokafka have the parts, that the transport was written for.

    Raises:
        ImportError: they are not; the message says what was expected.

    """
    for name, installed, expected in VERSIONS:
        if installed() != expected:
            raise ImportError(f"tokenmill.app.worker.transport was written for {name} {expected}, not {installed()}")
    for (owner, part), parameters in {**OVERRIDDEN, **CALLED}.items():
        found = getattr(owner, part, None)
        if found is None or list(inspect.signature(found).parameters) != list(parameters):
            versions = " and ".join(f"{name} {expected}" for name, _, expected in VERSIONS)
            raise ImportError(
                f"{owner.__module__.partition('.')[0]} changed {owner.__name__}.{part}: install {versions}"
            )
