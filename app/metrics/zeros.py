"""Counters that stand at 0 before anything happens: Prometheus does not see the growth of what has just appeared."""

from collections.abc import Iterable
from typing import Final

from tokenmill.decoding import REASONS
from tokenmill.engines import TOKENIZER_FAILED
from tokenmill.outcomes import NO_TOKENS, SKIPPED
from tokenmill.steps.min_chars import TOO_SHORT
from tokenmill.steps.normalized_length import NORMALIZED_TOO_LARGE
from tokenmill.steps.not_empty import EMPTY
from tokenmill.user_function import FUNCTION_FAILED, REJECTED

from ..settings import Stream
from .worker import (
    BLOCKS,
    CONSUMED_BYTES,
    CONTROL_JUNK,
    DEAD_LETTERS,
    DOCUMENTS,
    FILTERED,
    LATENCY_SECONDS,
    MESSAGE_BYTES,
    PUBLISH_SECONDS,
    RECORDS,
    TOKENS,
)

DEAD_LETTER_REASONS: Final = REASONS | {SKIPPED, FUNCTION_FAILED, TOKENIZER_FAILED, NORMALIZED_TOO_LARGE}
FILTER_REASONS: Final = frozenset({EMPTY, TOO_SHORT, NO_TOKENS, REJECTED})
"""A user's own function may have more, few and closed as well: they appear when they are first given."""


def mill_at_zero(streams: Iterable[Stream]) -> None:
    """Show what a mill counts of these streams; what it has counted already stays."""
    for stream in streams:
        for reason in DEAD_LETTER_REASONS:
            DEAD_LETTERS.labels(stream.raw_topic, reason)
        for reason in FILTER_REASONS:
            FILTERED.labels(stream.raw_topic, stream.split, reason)
        RECORDS.labels(stream.raw_topic)
        CONSUMED_BYTES.labels(stream.raw_topic)
        DOCUMENTS.labels(stream.raw_topic, stream.split)
        TOKENS.labels(stream.raw_topic, stream.split)
        BLOCKS.labels(stream.name, "topic")
        CONTROL_JUNK.labels(stream.control_topic)
        MESSAGE_BYTES.labels(stream.tokens_topic)
        PUBLISH_SECONDS.labels(stream.tokens_topic)


def store_at_zero(streams: Iterable[Stream]) -> None:
    """Show what a segment worker counts of these streams; what it has counted already stays."""
    for stream in streams:
        BLOCKS.labels(stream.name, "segment")
        CONTROL_JUNK.labels(stream.control_topic)
        LATENCY_SECONDS.labels(stream.name)
