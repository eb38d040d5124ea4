"""The contender TokenMill: mill workers and one segment worker, started as its supervisor starts them."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from benchmarks.cluster import delete_topics
from benchmarks.contenders import Running, Task
from benchmarks.measuring import Watched, wait_until_ready
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.kafka.topics import ensure_topics, needed_topics
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.store import PartitionReader, open_partition

MARK: Final = b'"partition resumed"'
"""In the log: a partition flows from here on."""
JUDGES: Final = b'"domain resumed"'
"""The same of a sequencer."""
OWN_KINDS: Final = {"tokens", "control", "signatures", "slices", "verdicts"}
"""Topics that no other run uses."""


@contextmanager
def start(task: Task, *, dedup: str = "none") -> Iterator[Running]:
    """Settle the streams, start the segment worker, and when it waits for blocks, the mill workers.

    With ``dedup``, a sequencer as well, whose CPU seconds count.
    """
    settings = Settings(
        bootstrap_servers=task.bootstrap_servers,
        raw_topics=(task.raw_topic,),
        tokenizer=str(task.tokenizer),
        store=task.directory / "store",
        stream_suffix=f"-{task.name}",
        group=task.name,
        log_format="json",
        dedup=dedup,
    )
    asyncio.run(_prepare(settings))
    streams = settings.streams()
    with ExitStack() as stack:
        chains = len(streams) * task.partitions
        segment = stack.enter_context(_worker("segment", settings, task, marks=chains))
        wait_until_ready([segment])
        judges = [stack.enter_context(_worker("sequencer", settings, task))] if settings.domains() else []
        wait_until_ready(judges)
        mills = [stack.enter_context(_worker("mill", settings, task, number=n)) for n in range(task.workers)]
        wait_until_ready(mills)
        for process in (segment, *judges):
            process.restart_clock()
        readers = [open_partition(settings.store, s.name, p) for s in streams for p in range(task.partitions)]
        yield Running([*mills, *judges, segment], lambda: _tokens(readers, settings.block_tokens))
    names = [topic.name for topic in needed_topics(settings) if topic.kind in OWN_KINDS]
    delete_topics(settings, names)


async def _prepare(settings: Settings) -> None:
    await ensure_topics(settings)
    for raw_topic in settings.raw_topics:
        plan = plan_topic(settings, raw_topic)
        for stream, recipe in plan.recipes.items():
            await settle(settings, stream, recipe, plan.tokenizer.content)


def _worker(role: str, settings: Settings, task: Task, *, marks: int = 1, number: int = 0) -> Watched:
    command = [sys.executable, "-m", "tokenmill.app.cli", role]
    log = task.directory / f"{role}-{number}.log"
    mark = JUDGES if role == "sequencer" else MARK
    return Watched(role, command, log, mark=mark, marks=marks, environment=settings.environment())


def _tokens(readers: list[PartitionReader], block_tokens: int) -> int:
    """Return the tokens of all committed blocks."""
    return block_tokens * sum(reader.refresh() for reader in readers)
