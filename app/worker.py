"""Running one of the two Faust apps as this process."""

import gc
import os
from typing import Final, NoReturn

import faust

from .logs import set_up_logging
from .settings import Settings
from .transport import BatchApp

GARBAGE_OBJECTS: Final = 50_000
"""New objects between two collections: a fetch makes some ten thousand, which live until it is milled, and no cycles;
at Python's 700 they would be looked at some dozen times."""


def run_worker(app: BatchApp, settings: Settings) -> NoReturn:
    """Run the app until SIGTERM or SIGINT, or until it ends itself (`tokenmill.app.ending`); does not return."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.tokenizer_threads))  # read at the first batch
    set_up_logging(settings.log_format, settings.log_level)
    worker = faust.Worker(app, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=settings.log_level)
    _spare_garbage_collector()
    worker.spinner = None  # it writes to the terminal even when nobody asked for it
    worker.execute_from_commandline()


def _spare_garbage_collector() -> None:
    """Leave what was imported out of all collections, and collect seldom; reference counts free nearly all there is."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
