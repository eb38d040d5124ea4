"""What a worker counts and measures. Each name, its labels and its line here make `docs/metrics.md`.

Counters count work done since the process began: what a crash made necessary again counts again.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from ..broker_contact import CONTACT, QUIET_SECONDS
from ..milling.decoding import REASONS
from ..milling.foreign_code import FUNCTION_FAILED, REJECTED
from ..milling.outcomes import NO_TOKENS, SKIPPED
from ..milling.steps.basic import EMPTY, NORMALIZED_TOO_LARGE, TOO_SHORT
from ..milling.tokenizers import TOKENIZER_FAILED
from ..settings import Stream

WORKER: Final = CollectorRegistry()
PROCESS: Final = CollectorRegistry()
"""Memory, CPU seconds and open files of this process; the supervisor has them as well."""
ProcessCollector(registry=PROCESS)
BROKER: Final = CollectorRegistry()
"""Whether this process reaches a broker; the supervisor has them as well."""

DISK_BUCKETS: Final = tuple(0.001 * 2**k for k in range(14))
"""1 ms to 8.2 s, doubling: etcd's buckets for the same thing."""
WIRE_BUCKETS: Final = tuple(0.001 * 2**k for k in range(16))
"""1 ms to 33 s: up to the time after which a request counts as lost."""
WAIT_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
"""From 0.1 s, too short to notice, to an hour, which is a backlog: blocks fill at the pace of the source."""
MESSAGE_BUCKETS: Final = tuple(float(1024 * 4**k) for k in range(8))
"""1 KiB to 16 MiB; the usual is 1 MiB."""

BROKER_UP: Final = Gauge(
    "tokenmill_broker_up",
    f"1 while a broker answers the process, 0 when none has for {QUIET_SECONDS:.0f} s.",
    registry=BROKER,
)
BROKER_UP.set_function(lambda: float(CONTACT.away_since is None))
BROKER_LAST_ANSWER: Final = Gauge(
    "tokenmill_broker_last_answer_timestamp_seconds", "When (Unix) a broker last answered the process.", registry=BROKER
)
BROKER_LAST_ANSWER.set_function(lambda: CONTACT.last_answer)


def _counter(name: str, text: str, labels: str = "") -> Counter:
    return Counter(name, text, labels.split(), registry=WORKER)


def _gauge(name: str, text: str, labels: str = "") -> Gauge:
    return Gauge(name, text, labels.split(), registry=WORKER)


def _histogram(name: str, text: str, buckets: Sequence[float], labels: str = "") -> Histogram:
    return Histogram(name, text, labels.split(), buckets=buckets, registry=WORKER)


RECORDS: Final = _counter("tokenmill_records_consumed", "Raw records taken from Kafka.", "topic")
CONSUMED_BYTES: Final = _counter("tokenmill_consumed_bytes", "Bytes of their values.", "topic")
DOCUMENTS: Final = _counter("tokenmill_documents", "Documents that were kept and tokenized.", "topic split")
TOKENS: Final = _counter(
    "tokenmill_tokens_produced", "Tokens of the kept documents, those around their texts included.", "topic split"
)
PACKING_TOKENS: Final = _counter(
    "tokenmill_packing_tokens",
    "What a packing does to tokens: `padding` that it puts into blocks, and those of kept documents that it leaves out "
    "of all blocks (`left_out`).",
    "topic split kind",
)
FILTERED: Final = _counter("tokenmill_documents_filtered", "Documents that a step filtered out.", "topic split reason")
STEP_DOCUMENTS: Final = _counter(
    "tokenmill_step_documents",
    "Documents that came to a step of the recipe's list of steps, by what became of them there (`passed`, `filtered`, "
    "`dead_lettered`).",
    "topic split step result",
)
STEP_TEXT_BYTES: Final = _counter(
    "tokenmill_step_text_bytes",
    "Bytes of their texts in UTF-8; of those that passed, as the step left them.",
    "topic split step result",
)
OTHER_RECORDS: Final = _counter(
    "tokenmill_records_without_document",
    "Tombstones and flush records; each split counts all of them.",
    "topic split kind",
)
DEAD_LETTERS: Final = _counter(
    "tokenmill_dead_letters", "Records dead-lettered, repeats after a restart included.", "topic reason"
)
BLOCKS: Final = _counter(
    "tokenmill_blocks",
    "Blocks made durable: acknowledged on the token topic (sink `topic`), committed to the store (sink `segment`).",
    "stream sink",
)
MESSAGE_BYTES: Final = _histogram(
    "tokenmill_message_bytes",
    "Bytes of tokens in each message published to a token topic; carries have none.",
    MESSAGE_BUCKETS,
    "topic",
)
PUBLISH_SECONDS: Final = _histogram(
    "tokenmill_produce_duration_seconds",
    "Seconds until a message is acknowledged by all in-sync replicas.",
    WIRE_BUCKETS,
    "topic",
)
DUPLICATES: Final = _counter("tokenmill_duplicate_blocks", "Blocks that came again and were dropped by number.")
IGNORED: Final = _counter(
    "tokenmill_ignored_messages",
    "Messages on token topics that were passed over, because they are on the ignore list (`tokenmill ignore`).",
)
CONTROL_JUNK: Final = _counter(
    "tokenmill_control_junk",
    "Records on control topics that came as one of the known kinds and are none; the log names them.",
    "topic",
)
GAPS: Final = _counter("tokenmill_gaps", "Messages that began after the wanted block.")
COMMITS: Final = _counter("tokenmill_commits", "Commits to segments.")
COMMIT_SECONDS: Final = _histogram(
    "tokenmill_commit_duration_seconds", "Seconds to write and sync what one fetch brought.", DISK_BUCKETS
)
LATENCY_SECONDS: Final = _histogram(
    "tokenmill_end_to_end_latency_seconds",
    "Seconds from the timestamp of a message's last source record to the commit that made its blocks trainable; one "
    "for each message.",
    WAIT_BUCKETS,
    "stream",
)
STAGE_SECONDS: Final = _counter(
    "tokenmill_stage_seconds",
    "Seconds that the worker's partitions spent in each stage. A partition is in one stage at any moment: together "
    "they grow by the number of partitions each second.",
    "stage",
)
ERAS: Final = _counter("tokenmill_eras", "Eras that the mill wrote to a control topic.", "stream")
BLOCKS_BEHIND: Final = _gauge(
    "tokenmill_mirror_blocks_behind",
    "Blocks of a stream that are on its token topic and not in a mirror's store yet.",
    "stream",
)
BYTES_BEHIND: Final = _gauge("tokenmill_mirror_bytes_behind", "Bytes of their tokens.", "stream")
ERAS_BEHIND: Final = _gauge(
    "tokenmill_mirror_eras_behind",
    "Eras of a stream that a mirror's store cannot be trained on yet, because it lacks blocks of theirs.",
    "stream",
)
STORE_ERAS: Final = _gauge(
    "tokenmill_store_eras",
    "Eras of a stream in the store, as the worker or mirror says that brings them: the one that has partition 0.",
    "stream",
)
REBALANCES: Final = _counter("tokenmill_rebalances", "Times that Kafka gave the worker its partitions again.")
TRUNCATED_BYTES: Final = _counter(
    "tokenmill_recovery_truncated_bytes",
    "Bytes that recoveries cut off segments because they had never been committed.",
)

PARTITIONS: Final = _gauge("tokenmill_partitions", "Partitions that the worker owns, by what they do.", "topic state")
END_OFFSET: Final = _gauge(
    "tokenmill_end_offset",
    "Offset after the last record of a partition: it grows by what producers send, whether or not it is taken.",
    "topic partition",
)
LAG_RECORDS: Final = _gauge(
    "tokenmill_consumer_lag_records",
    "Records of a raw topic that wait to be milled; messages of a token topic that wait to be stored.",
    "topic partition",
)
LAG_SECONDS: Final = _gauge(
    "tokenmill_consumer_lag_seconds", "Age of the oldest of them, by its timestamp; 0 without any.", "topic partition"
)
DURABLE_LAG_RECORDS: Final = _gauge(
    "tokenmill_durable_lag_records",
    "Records of a raw topic whose tokens are not yet durable on all its token topics: those above, those on their way, "
    "and those that open blocks begin with, until these are full, flushed, or carried (after `carry_seconds`).",
    "topic partition",
)
DURABLE_LAG_SECONDS: Final = _gauge(
    "tokenmill_durable_lag_seconds", "Age of the oldest of them, by its timestamp; 0 without any.", "topic partition"
)
NEWEST_TOKEN: Final = _gauge(
    "tokenmill_newest_token_timestamp_seconds",
    "Timestamp (Unix) of the newest source record whose tokens are trainable in the store; `time()` less this is the "
    "age of the newest trainable token.",
    "stream partition",
)
OPEN_TOKENS: Final = _gauge(
    "tokenmill_open_block_tokens", "Tokens that wait for their block to be full.", "topic partition split"
)
DISK_FREE_BYTES: Final = _gauge("tokenmill_disk_free_bytes", "Bytes that are free on the store's disk.", "sink")
QUEUED_BYTES: Final = _gauge("tokenmill_queue_bytes", "Bytes of tokens that wait to be acknowledged by Kafka.")
CERTIFICATE_END: Final = _gauge(
    "tokenmill_certificate_end_timestamp_seconds",
    "When (Unix) the certificates end that a setting names, as the worker found them at its start: the first of a "
    "chain of our own, the last of authorities.",
    "setting",
)
ENGINE: Final = _gauge("tokenmill_engine_info", "1 for the engine that makes the ids of a raw topic.", "topic engine")


def mill_at_zero(streams: Iterable[Stream]) -> None:
    """Show what a mill counts of these streams; what it has counted already stays."""
    for stream in streams:
        for reason in REASONS | {SKIPPED, FUNCTION_FAILED, TOKENIZER_FAILED, NORMALIZED_TOO_LARGE}:
            DEAD_LETTERS.labels(stream.raw_topic, reason)
        for reason in (EMPTY, TOO_SHORT, NO_TOKENS, REJECTED):  # those of a user's own function: when first given
            FILTERED.labels(stream.raw_topic, stream.split, reason)
        RECORDS.labels(stream.raw_topic)
        CONSUMED_BYTES.labels(stream.raw_topic)
        DOCUMENTS.labels(stream.raw_topic, stream.split)
        TOKENS.labels(stream.raw_topic, stream.split)
        for kind in PACKING_TOKENS_KINDS:
            PACKING_TOKENS.labels(stream.raw_topic, stream.split, kind)
        BLOCKS.labels(stream.name, "topic")
        CONTROL_JUNK.labels(stream.control_topic)
        MESSAGE_BYTES.labels(stream.tokens_topic)
        PUBLISH_SECONDS.labels(stream.tokens_topic)


PACKING_TOKENS_KINDS: Final = ("padding", "left_out")
"""Which counts of a packing are tokens, as the totals call them."""

STEP_RESULTS: Final = ("passed", "filtered", "dead_lettered")


def steps_at_zero(streams: Iterable[Stream], labels: Sequence[str]) -> None:
    """Show what a mill counts of the steps of these streams; what it has counted already stays."""
    for stream, label, result in product(streams, labels, STEP_RESULTS):
        STEP_DOCUMENTS.labels(stream.raw_topic, stream.split, label, result)
        STEP_TEXT_BYTES.labels(stream.raw_topic, stream.split, label, result)


def store_at_zero(streams: Iterable[Stream]) -> None:
    """Show what a segment worker counts of these streams; what it has counted already stays."""
    for stream in streams:
        BLOCKS.labels(stream.name, "segment")
        CONTROL_JUNK.labels(stream.control_topic)
        LATENCY_SECONDS.labels(stream.name)
