"""Partitions in several processes: each is computed by one core, and they have nothing to do with each other.

Processes are spawned, so that no lock or connection of this one is copied. None outlives this process.
"""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from operator import add
from typing import Final

from tokenmill.errors import TokenMillError
from tokenmill.milling.outcomes import Stages
from tokenmill.recipe_stages import reopen_stages
from tokenmill.stages.engines import RAW_BYTES, TokenizerFile

from ...gc_tuning import collect_seldom, keep_loaded
from ...kafka import fastpath
from ...kafka.schema_registry import schemas_for_command
from .partition import check_partition
from .result import Advance, ChainResult
from .task import PartitionTask

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""What ``-P`` is as a variable: the working directory is not on the module path."""
REPORT_SECONDS: Final = 0.2
"""How often a process says how far it is."""


def check_partitions(
    tasks: Sequence[PartitionTask], processes: int
) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
    """Verify the partitions, ``processes`` at a time; yield, with each one's index, its advances and then its results.

    Raises:
        TokenMillError: what a partition's check raised, or a process that ended without a result.

    """
    waiting = deque(enumerate(tasks))
    with _workers(min(processes, len(tasks))) as workers:
        busy: dict[Connection, int] = {}
        for connection in workers:
            busy[connection] = _give(connection, waiting)
        while busy:
            for ready in wait(list(busy)):
                connection = next(known for known in busy if known is ready)
                answer = _receive(connection, workers[connection], tasks[busy[connection]])
                yield busy[connection], answer
                if isinstance(answer, list):
                    del busy[connection]
                    if waiting:
                        busy[connection] = _give(connection, waiting)


def _give(connection: Connection, waiting: deque[tuple[int, PartitionTask]]) -> int:
    index, task = waiting.popleft()
    connection.send(task)
    return index


def _receive(connection: Connection, process: SpawnProcess, task: PartitionTask) -> Advance | list[ChainResult]:
    try:
        answer = connection.recv()
    except EOFError:
        process.join()
        raise TokenMillError(
            f"the process that verified {task.raw_topic} partition {task.partition} ended with code "
            f"{process.exitcode} (-9: killed, perhaps for its memory; else see above): run again with fewer processes"
        ) from None
    if isinstance(answer, TokenMillError):
        raise answer
    if not isinstance(answer, Advance | list):
        raise TypeError(answer)
    return answer


@contextmanager
def _workers(count: int) -> Iterator[dict[Connection, SpawnProcess]]:
    context = multiprocessing.get_context("spawn")
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, count))
    fast = fastpath.is_available()  # asked here, so that the log says it once
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for number in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, threads, fast), name=f"verify {number}", daemon=True)
            with _shielded():
                process.start()
            theirs.close()
            workers[mine] = process
        yield workers
    finally:
        for connection, process in workers.items():
            connection.close()
            process.kill()  # it holds nothing that would need an orderly end
            process.join()


@contextmanager
def _shielded() -> Iterator[None]:
    """Start processes that import nothing from the working directory, and never see Ctrl-C: they inherit both.

    Ctrl-C reaches the whole group; we end them. multiprocessing says ``-P`` to them only if we were started with it.
    """
    safe = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    before: set[int | signal.Signals] = set()
    try:
        ensure_running()  # multiprocessing's own helper would be started next, and lift the mask again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if safe is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = safe


def _work(connection: Connection, threads: int, fast: bool) -> None:  # noqa: FBT001 - multiprocessing passes it
    """Verify the partitions that come through the pipe, until it closes."""
    collect_seldom()
    if fast:
        fastpath.install()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # read by tokenizers when it first encodes
    opened: dict[bytes, Stages] = {}

    def stages(task: PartitionTask) -> Stages:
        """Open a raw topic's stages once for all its partitions."""
        key = task.stages_key
        if key not in opened:
            chain = task.chains[0]
            name = RAW_BYTES if task.tokenizer is None else chain.tokens_topic
            file = TokenizerFile(name, task.tokenizer)
            recipe = chain.genesis.recipe
            schemas = schemas_for_command(task.settings, recipe.decode)
            opened[key] = reopen_stages(recipe, file, task.settings.engine, schemas)
            keep_loaded()
        return opened[key]

    try:
        while True:
            task: PartitionTask = connection.recv()
            try:
                report = _Reports(connection)
                answer: list[ChainResult] | TokenMillError = asyncio.run(check_partition(task, stages, report))
            except TokenMillError as error:
                answer = error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody listens any more


class _Reports:
    """Sends advances through the pipe, added up: a message for each fetch would wake up two processes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sum = Advance(0, 0, 0)
        self._sent = time.monotonic()

    def __call__(self, advance: Advance) -> None:
        self._sum = Advance(*map(add, self._sum, advance))
        if time.monotonic() - self._sent >= REPORT_SECONDS:
            self._connection.send(self._sum)
            self._sum, self._sent = Advance(0, 0, 0), time.monotonic()


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however that came about."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
