"""Who takes part: each starts its processes on a raw topic and says how many tokens it has on disk."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.measuring import Watched


@dataclass(frozen=True, slots=True)
class Task:
    """What a contender is given for one run."""

    bootstrap_servers: str
    raw_topic: str
    partitions: int
    tokenizer: Path
    """GPT-2's ``tokenizer.json``."""
    directory: Path
    """Empty, and its own: for logs, files and stores."""
    name: str
    """Unlike any other run's, for topics and groups."""
    workers: int


@dataclass(frozen=True, slots=True)
class Running:
    """A contender at work."""

    processes: Sequence[Watched]
    """All whose CPU seconds count."""
    tokens_on_disk: Callable[[], int]
    """In full blocks."""


class Start(Protocol):
    """Starts a contender."""

    def __call__(self, task: Task) -> AbstractContextManager[Running]:
        """Start the processes; they, and their topics, are gone when the block ends."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to make token blocks of a topic."""

    name: str
    start: Start
    slow: bool = False
    """Whether it is given the short topic: rates are compared, and nobody wants to wait."""
