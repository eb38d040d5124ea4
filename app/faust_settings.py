"""Faust's own settings for both apps, each with the reason why it is not the default."""

import tempfile
from pathlib import Path
from typing import Any, Final

from .kafka import METADATA_MAX_AGE_MS, RECORD_OVERHEAD_BYTES
from .security import faust_security
from .settings import Settings
from .topic_needs import needed_topics

FETCH_BYTES: Final = 1024 * 1024
"""Most bytes of one partition in one fetch (compressed as they lie in the log)."""
QUEUED_BATCHES: Final = 3
"""Size of an agent's queue, in batches; its high-water mark is two. Bounds memory with `FETCH_BYTES`."""
NEVER_SECONDS: Final = 10 * 86400.0
"""Faust lets a worker leave its group when nobody asks it for records for this long, and never lets it return."""
REQUEST_SECONDS: Final = 40.0
"""Faust's 90 s would let a lost broker stand for as long; above every session timeout that makes sense."""


def faust_options(settings: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `faust.App`.

    Raises:
        SettingsError: a file that a setting names cannot be used.

    """
    brokers = ";".join(f"aiokafka://{address}" for address in settings.bootstrap_servers.split(","))
    largest = max(topic.max_message_bytes for topic in needed_topics(settings)) + RECORD_OVERHEAD_BYTES
    return {
        "broker": brokers,
        **faust_security(settings),
        "key_serializer": "raw",
        "value_serializer": "raw",
        "store": "memory://",
        "datadir": Path(tempfile.gettempdir()) / "tokenmill-faust",  # nothing is ever written there
        "web_enabled": False,  # Faust's page says OK whatever happens
        "topic_disable_leader": True,  # no table, so no leader topic
        "topic_allow_declare": False,  # topics are made by `tokenmill topics`, with the settings that they need
        "table_standby_replicas": 0,  # plain round-robin assignment
        "stream_wait_empty": False,  # a rebalance does not wait for events: positions come from the data
        "stream_buffer_maxsize": QUEUED_BATCHES,
        "consumer_max_fetch_size": FETCH_BYTES,
        "consumer_auto_offset_reset": "earliest",  # never used: the transport sets "none"
        "consumer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "producer_linger": 0,  # one message is in flight: waiting for a second one would only delay it
        "producer_max_request_size": largest,
        "producer_request_timeout": REQUEST_SECONDS,
        "broker_request_timeout": max(REQUEST_SECONDS, settings.session_timeout),
        "broker_session_timeout": settings.session_timeout,
        "broker_rebalance_timeout": settings.session_timeout,
        "broker_heartbeat_interval": settings.session_timeout / 10,
        "broker_max_poll_interval": NEVER_SECONDS,
        "broker_commit_interval": 1.0,
        "broker_check_crcs": True,
    }
