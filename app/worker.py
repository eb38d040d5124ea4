"""Running one of the two Faust apps as this process."""

import os
import threading
from typing import Final, NoReturn

import faust

from .ending import RESUME_CODE, end_process
from .garbage import keep_loaded
from .logs import set_up_logging
from .settings import Settings
from .transport import BatchApp

STOP_SECONDS: Final = 8.0
"""How long a worker may take to end in order; it takes about one. `docker stop` waits for 10, a supervisor for 15."""


class Worker(faust.Worker):
    """A Faust worker that ends within `STOP_SECONDS` of being asked to.

    Faust can wait for ever: the signal may come while a rebalance waits for the very thread that is to be stopped. To
    end in order is a courtesy to the group and to whoever reads the log; what is not durable then is done again.
    """

    async def stop(self) -> None:
        """Stop in order, or else at once; with code 0 if it was asked to, and nothing of Faust's had crashed."""
        code = RESUME_CODE if self.crashed else 0
        reason = f"it did not stop in order in {STOP_SECONDS:.0f} s"
        end = threading.Timer(STOP_SECONDS, end_process, [reason], {"code": code})
        end.daemon = True
        end.start()
        await super().stop()


def run_worker(app: BatchApp, settings: Settings) -> NoReturn:
    """Run the app until SIGTERM or SIGINT, or until it ends itself (`tokenmill.app.ending`); does not return."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.tokenizer_threads))  # read at the first batch
    set_up_logging(settings.log_format, settings.log_level)
    worker = Worker(app, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=settings.log_level)
    keep_loaded()
    worker.spinner = None  # it writes to the terminal even when nobody asked for it
    worker.execute_from_commandline()
