"""What is counted and measured, how the numbers of several processes become one page, and who may ask for it.

`worker` defines what a worker counts; `samples` makes plain values of it, which travel in a heartbeat; `fleet` adds up
what all processes of all workers ever counted; `server` shows it. Labels are closed sets, never a record's text.
"""

from .worker_metrics import (
    BLOCKS,
    BLOCKS_BEHIND,
    BYTES_BEHIND,
    COMMIT_SECONDS,
    COMMITS,
    CONSUMED_BYTES,
    CONTROL_JUNK,
    DEAD_LETTERS,
    DISK_FREE_BYTES,
    DOCUMENTS,
    DUPLICATES,
    ENGINE,
    ERAS,
    ERAS_BEHIND,
    GAPS,
    IGNORED,
    LATENCY_SECONDS,
    MESSAGE_BYTES,
    PUBLISH_SECONDS,
    REBALANCES,
    RECORDS,
    STORE_ERAS,
    TOKENS,
    TRUNCATED_BYTES,
)

__all__ = [
    "BLOCKS",
    "BLOCKS_BEHIND",
    "BYTES_BEHIND",
    "COMMITS",
    "COMMIT_SECONDS",
    "CONSUMED_BYTES",
    "CONTROL_JUNK",
    "DEAD_LETTERS",
    "DISK_FREE_BYTES",
    "DOCUMENTS",
    "DUPLICATES",
    "ENGINE",
    "ERAS",
    "ERAS_BEHIND",
    "GAPS",
    "IGNORED",
    "LATENCY_SECONDS",
    "MESSAGE_BYTES",
    "PUBLISH_SECONDS",
    "REBALANCES",
    "RECORDS",
    "STORE_ERAS",
    "TOKENS",
    "TRUNCATED_BYTES",
]
