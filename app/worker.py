"""Running one of the two Faust apps as this process."""

import os
from typing import NoReturn

import faust

from .garbage import keep_loaded
from .logs import set_up_logging
from .settings import Settings
from .transport import BatchApp


def run_worker(app: BatchApp, settings: Settings) -> NoReturn:
    """Run the app until SIGTERM or SIGINT, or until it ends itself (`tokenmill.app.ending`); does not return."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.tokenizer_threads))  # read at the first batch
    set_up_logging(settings.log_format, settings.log_level)
    worker = faust.Worker(app, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=settings.log_level)
    keep_loaded()
    worker.spinner = None  # it writes to the terminal even when nobody asked for it
    worker.execute_from_commandline()
