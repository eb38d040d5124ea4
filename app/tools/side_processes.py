"""Processes of a command that compute beside it, each at the other end of a pipe; none outlives the command.

They are spawned, so that no lock or connection of this process is copied.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from typing import Final

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""What ``-P`` is as a variable: the working directory is not on the module path."""


@contextmanager
def side_processes(
    count: int, name: str, work: Callable[..., None], *arguments: object
) -> Iterator[dict[Connection, SpawnProcess]]:
    """Yield the pipes to ``count`` processes, and the processes, which run ``work(pipe, *arguments)``.

    They are killed when the block ends: what they hold must need no orderly end.
    """
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, SpawnProcess] = {}
    try:
        for number in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, *arguments), name=f"{name} {number}", daemon=True)
            with _shielded():
                process.start()
            theirs.close()
            workers[mine] = process
        yield workers
    finally:
        for process in workers.values():
            process.kill()
        for connection, process in workers.items():
            process.join()
            connection.close()


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


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has ended, however that came about."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
