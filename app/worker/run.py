"""Running one of the two Faust apps as this process."""

import faulthandler
import os
import threading
import time
from typing import Final, NoReturn

import faust

from ..broker_contact import CONTACT
from ..kafka import fastpath
from ..logs import set_up_logging
from ..process import allow_more_files, keep_loaded
from ..settings import Settings
from .ending import RESUME_CODE, end_process
from .transport import BatchApp

STOP_SECONDS: Final = 8.0
"""How long a worker may take to end in order while brokers answer; it takes about one. `docker stop` waits for 10, a
supervisor for 15."""
LOOK_SECONDS: Final = 0.25
"""How often it is looked whether a broker still answers meanwhile."""


class Worker(faust.Worker):
    """A Faust worker that ends within `STOP_SECONDS` of being asked to.

    Faust can wait for ever: the signal may come while a rebalance waits for the very thread that is to be stopped. To
    end in order is a courtesy to the group and to whoever reads the log; what is not durable then is done again.
    """

    def _on_sigusr1(self) -> None:
        """Write where all threads are to standard error, without the local variables that Faust would add.

        Those hold passwords and records.
        """
        faulthandler.dump_traceback()

    def _on_sigusr2(self) -> None:
        """Do the same: Faust would start a debugger, with nobody to talk to."""
        faulthandler.dump_traceback()

    async def stop(self) -> None:
        """Stop in order, or else at once; with code 0 if it was asked to, and nothing of Faust's had crashed.

        Where no broker answers there is nobody to say goodbye to: the group finds out by itself.
        """
        code = RESUME_CODE if self.crashed else 0
        threading.Thread(target=_end_in_time, args=[code], name="end", daemon=True).start()
        await super().stop()


def _end_in_time(code: int) -> None:
    began = time.monotonic()
    while (waited := time.monotonic() - began) < STOP_SECONDS:
        time.sleep(LOOK_SECONDS)
        if CONTACT.is_deaf(waited):
            end_process("it was to end, and no broker answers to whom it could say so", code=code)
    end_process(f"it did not stop in order in {STOP_SECONDS:.0f} s", code=code)


def run_worker(app: BatchApp, settings: Settings) -> NoReturn:
    """Run the app until SIGTERM or SIGINT, or until it ends itself (`tokenmill.app.worker.ending`); does not return."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.tokenizer_threads))  # read at the first batch
    set_up_logging(settings.log_format, settings.log_level)
    allow_more_files()
    fastpath.install()
    worker = Worker(app, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=settings.log_level)
    keep_loaded()
    worker.spinner = None  # it writes to the terminal even when nobody asked for it
    worker.execute_from_commandline()
