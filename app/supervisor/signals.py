"""Running until somebody says stop: Ctrl-C, SIGTERM, or the terminal that goes away."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_signalled(main: Coroutine[Any, Any, int], *, serves: bool = False) -> int:
    """Run ``main`` in an event loop of its own and return what it returns, or 128 + n after signal n.

    Of a process that ``serves`` until it is told to end, SIGTERM is the orderly end: 0, as of a worker.

    The first signal cancels ``main``, which ends what it started in order. The second one ends this process at once,
    and the kernel kills the children that asked for that (`tokenmill.app.process`).
    """
    received: list[signal.Signals] = []

    async def run() -> int:
        task = asyncio.create_task(main)

        def stop(number: signal.Signals) -> None:
            received.append(number)
            if len(received) > 1:
                os._exit(128 + number)
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if not received:
            raise
        return 0 if serves and received[0] == signal.SIGTERM else 128 + received[0]
