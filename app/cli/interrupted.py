"""Work that a person, a terminal that closes, or whoever ends processes may interrupt: it ends in order, once."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def until_interrupted(work: Coroutine[Any, Any, T]) -> tuple[T | None, signal.Signals | None]:
    """Run ``work``; return what it returned, or the signal that cancelled it: SIGINT, SIGTERM or SIGHUP.

    It is cancelled once, and may close its clients; a second signal does what it does to any program. One that was
    ignored when the process began (``nohup``) stays so.
    """
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, T]) -> tuple[T | None, signal.Signals | None]:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        received.append(number)
        leave()
        task.cancel()

    def leave() -> None:
        for number in heeded:
            loop.remove_signal_handler(number)
        heeded.clear()

    heeded: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        heeded += [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await task, None
    except asyncio.CancelledError:
        if not received:
            raise
        return None, received[0]
    finally:
        leave()
