"""Which stage a sample of a running worker belongs to: that of the innermost function that this table knows."""

import linecache
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

STAGES: Final = ("fetch", "decode", "tokenize", "pack", "publish", "append", "sync", "other")

TABLE: Final = (
    # What aiokafka does for its consumer and for its producer. The connection and the client below them serve both, so
    # they are left out, and whoever called them decides. The event loop calls what receives; most bytes are fetched.
    ("aiokafka/consumer/", "fetch"),
    ("aiokafka/conn.py:AIOKafkaConnection._read", "fetch"),
    ("asyncio/selector_events.py:_SelectorSocketTransport._read_ready", "fetch"),
    ("aiokafka/producer/", "publish"),
    # TokenMill. What both sides use (chain.py, message.py, pieces.py) is left out as well.
    ("app/worker/transport.py", "fetch"),
    ("app/worker/in_flight.py", "fetch"),
    ("app/kafka/fetched_batches.py", "fetch"),
    ("app/kafka/token_topic.py", "decode"),
    ("app/mill/publisher.py", "publish"),
    ("app/segments/following.py", "append"),
    ("app/segments/token_partition.py", "append"),
    ("tokenmill/recipe.py:canonical_json", "decode"),
    ("app/milling/columns.py:Chain", "pack"),
    ("app/milling/columns.py:PassageNotes", "pack"),
    ("app/milling/columns.py", "decode"),
    ("app/milling/document_columns.py:Metas", "pack"),
    ("app/milling/document_columns.py:document_metas", "pack"),
    ("app/milling/document_columns.py", "decode"),
    ("app/milling/decoding/", "decode"),
    ("tokenmill/documents.py", "decode"),
    ("app/milling/outcomes.py", "decode"),
    ("app/milling/splits.py", "decode"),
    ("app/milling/steps/", "decode"),
    ("app/milling/tokenizers/", "tokenize"),
    ("app/milling/packing/packed_blocks.py", "pack"),
    ("app/milling/partition_mill.py", "pack"),
    ("tokenmill/reading.py", "append"),
    ("tokenmill/store/", "append"),
    # The loop that is written by hand.
    ("benchmarks/contenders/hand_written.py:split_of", "decode"),
    ("benchmarks/contenders/hand_written.py:Loop.mill", "decode"),
    ("benchmarks/contenders/hand_written.py:with_", "tokenize"),
    ("benchmarks/contenders/hand_written.py:Loop.pack", "pack"),
    ("benchmarks/contenders/hand_written.py:cut", "publish"),
    ("benchmarks/contenders/hand_written.py:Loop.append", "append"),
)
"""Beginnings of ``file:function``, and their stage."""

WAITING: Final = (
    "selectors.py:EpollSelector.select",
    "threading.py:Condition.wait",
    "concurrent/futures/thread.py:_worker",
)
"""Where a thread has nothing to do; a sample there caught it as it fell asleep or woke up."""

_FRAME: Final = re.compile(r"(?P<function>.+) \((?P<path>[^()]+):(?P<line>\d+)\)")
_ROOTS: Final = re.compile(r".*/(?:site-packages/|python3\.\d+/)|.*/(?=(?:app|benchmarks|tokenmill)/)")
"""What stands before a file's path as the table has it."""


class Frame(NamedTuple):
    """One function on a thread's stack."""

    function: str
    path: str
    line: int

    @classmethod
    def parse(cls, text: str) -> "Frame | None":
        """Return the frame that py-spy wrote as ``function (path:line)``; None for what is none, such as a thread."""
        found = _FRAME.fullmatch(text)
        return cls(found["function"], found["path"], int(found["line"])) if found else None

    @property
    def name(self) -> str:
        """``file:function``, the file without the folder that it is installed in."""
        return f"{_ROOTS.sub('', self.path)}:{self.function}"


def stage_of(stack: Sequence[Frame]) -> str | None:
    """Return the stage of a sample, outermost frame first; None for a thread that waits."""
    if not stack or stack[-1].name in WAITING:
        return None
    if is_sync(stack):
        return "sync"
    for frame in reversed(stack):
        for start, stage in TABLE:
            if frame.name.startswith(start):
                return stage
    return "other"


def is_sync(stack: Sequence[Frame]) -> bool:
    """Return whether a thread is in fsync or fdatasync: the line that calls them tells, for they are not Python."""
    return bool(stack) and "sync(" in linecache.getline(stack[-1].path, stack[-1].line)
