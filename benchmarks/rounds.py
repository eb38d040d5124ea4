"""Rounds: every contender once in each, one after the other, in turning order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Final, TypeAlias, TypeVar

from benchmarks import corpus
from benchmarks.cluster import PARTITIONS, RawTopic, fill
from benchmarks.contenders import Contender, Running, Task
from benchmarks.corpus import Document
from benchmarks.field import Documents
from benchmarks.machine import memory_at_hand
from benchmarks.measuring import Measured, Watched, measure, wait_until_ready
from tokenmill.app.local.broker import Broker

MB: Final = 1e6

AT_HAND: Final = 8
"""Bytes of memory for each of text: a run fills a quarter of that, with tokens in the broker's log and in files."""

T = TypeVar("T")
Watching: TypeAlias = Callable[[Sequence[Watched]], AbstractContextManager[T]]
"""Looks at processes while its block runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender, once."""

    contender: str
    topic: RawTopic
    measured: Measured

    @property
    def rates(self) -> dict[str, float]:
        """What is reported of it; a megabyte is a million bytes, and text is counted without its JSON."""
        topic, wall = self.topic, self.measured.wall_seconds
        return {
            "text_mb_per_cpu_s": topic.text_bytes / MB / sum(self.measured.cpu_seconds.values()),
            "text_mb_per_s": topic.text_bytes / MB / wall,
            "documents_per_s": topic.documents / wall,
            "tokens_per_s": topic.tokens / wall,
            "peak_rss_mb": self.measured.peak_rss_bytes / MB,
        }

    @property
    def cpu_s_per_gb(self) -> dict[str, float]:
        """CPU seconds for each gigabyte of text, by role."""
        return {role: seconds / self.topic.text_bytes * 1e9 for role, seconds in self.measured.cpu_seconds.items()}


@dataclass(slots=True)
class Track:
    """Where contenders run: a broker with full raw topics, and a place for what they write."""

    broker: Broker
    directory: Path
    tokenizer: Path
    servers: str = ""
    """Where contenders find the broker; empty: where it is."""
    partitions: int = PARTITIONS
    order: Callable[[Iterator[Document]], Iterable[Document]] = iter
    """What is made of the documents before they are sent."""
    _topics: dict[str, RawTopic] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def topic(self, contender: Contender, documents: Documents) -> RawTopic:
        """Return the raw topic for a contender, filled when it is first wanted."""
        size = documents.slow_bytes if contender.slow else documents.fast_bytes
        name = f"raw-{documents.cut_at}-{size}"
        if name not in self._topics:
            found = self.order(corpus.documents(documents.cut_at, size))
            self._topics[name] = fill(self.broker, name, found, self.tokenizer, partitions=self.partitions)
        return self._topics[name]

    def run(self, contender: Contender, documents: Documents, workers: int) -> Run:
        """Let a contender do its topic, and measure it."""
        topic = self.topic(contender, documents)
        with memory_at_hand(AT_HAND * topic.text_bytes) as let_go, self._started(contender, topic, workers) as running:
            wait_until_ready(running.processes)
            let_go()
            return Run(contender.name, topic, _measure(running, topic))

    def watch(self, contender: Contender, documents: Documents, watching: Watching[T]) -> tuple[Run, T]:
        """Let a contender do its topic with one worker while ``watching`` looks on; its speed does not count."""
        topic = self.topic(contender, documents)
        with self._started(contender, topic, 1) as running:
            wait_until_ready(running.processes)
            with watching(running.processes) as found:
                run = Run(contender.name, topic, _measure(running, topic))
            return run, found

    @contextmanager
    def _started(self, contender: Contender, topic: RawTopic, workers: int) -> Iterator[Running]:
        """Start a contender in an empty directory of its own, which stays only where something failed."""
        name = f"run-{next(self._numbers)}"
        directory = self.directory / name
        directory.mkdir(parents=True)
        servers = self.servers or self.broker.bootstrap_servers
        task = Task(servers, topic.name, topic.partitions, self.tokenizer, directory, name, workers)
        with contender.start(task) as running:
            yield running
        rmtree(directory)


def _measure(running: Running, topic: RawTopic) -> Measured:
    return measure(running.processes, running.tokens_on_disk, topic.block_tokens)


def turned(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Return the contenders in the order of round ``number``, each time beginning with the next one."""
    start = number % len(contenders)
    return [*contenders[start:], *contenders[:start]]
