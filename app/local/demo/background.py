"""Work that takes long, in a thread that nobody has to wait for when the demo is interrupted."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start ``work`` and return its future; the process may end before it is done, unlike with a thread pool."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that whoever stops waiting does not take the future away from the thread

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
