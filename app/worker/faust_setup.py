"""Faust's settings for both apps, each with its reason."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials

from ..kafka.clients import METADATA_MAX_AGE_MS, RECORD_OVERHEAD_BYTES
from ..kafka.security import login_tokens, password, ssl_context
from ..kafka.topics import JOINED_BYTES, needed_topics
from ..settings import ConnectionSettings, Settings

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
"""Faust lets a worker leave its group when its records are not asked for so long, and never lets it return."""
REQUEST_SECONDS: Final = 10.0
"""Shortest time after which an unanswered request is given up. A connection that says nothing any more is noticed by
that alone, and Faust's 90 s would let a worker stand for as long. Twice the session time-out where that is more: the
brokers hold a member's request to join for as long as one session."""


def fetch_share(partitions: int) -> int:
    """Return the most bytes that a fetch brings of each of ``partitions``."""
    return max(LEAST_FETCH_BYTES, min(FETCH_BYTES, FETCHED_BYTES // max(1, partitions)))


def faust_options(settings: Settings) -> dict[str, Any]:
    """Return the keyword arguments of `faust.App`.

    Raises SettingsError where a file that a setting names cannot be used.
    """
    brokers = ";".join(f"aiokafka://{address}" for address in settings.bootstrap_servers.split(","))
    request_seconds = max(REQUEST_SECONDS, 2 * settings.session_timeout)
    largest = max(JOINED_BYTES, *(topic.max_message_bytes for topic in needed_topics(settings))) + RECORD_OVERHEAD_BYTES
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
        "broker_commit_interval": 3.0,  # only others read what is committed: a worker goes on from what is durable
        "broker_check_crcs": True,
    }


def _security(settings: ConnectionSettings) -> Mapping[str, Any]:
    """Return the keyword arguments by which a Faust app encrypts and logs in.

    Raises SettingsError as `client_security`.
    """
    context = ssl_context(settings) if settings.encrypts else None
    if settings.sasl_mechanism == "OAUTHBEARER":
        return {"broker_credentials": OAuthCredentials(oauth_cb=login_tokens(settings), ssl_context=context)}
    if settings.logs_in:
        credentials = SASLCredentials(
            username=settings.sasl_username,
            password=password(settings, "sasl"),
            mechanism=settings.sasl_mechanism,
            ssl_context=context,
        )
        return {"broker_credentials": credentials}
    return {"broker_credentials": SSLCredentials(context)} if context else {}
