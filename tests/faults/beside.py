"""Something that is done again and again in a thread, beside a test."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def beside(seconds: float, look: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call ``look`` every so many seconds until the block ends; what it raises fails the block.

    Yields what raises that earlier, if there is anything by then.
    """
    enough = threading.Event()

    def run() -> None:
        while not enough.wait(seconds):
            look()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)

        def require_health() -> None:
            if running.done():
                running.result()

        try:
            yield require_health
        finally:
            enough.set()
        running.result()
