"""How a lab runs. Imported before torch, which takes seconds to load: Ctrl-C ends the process at once meanwhile."""

# ruff: noqa: INP001 - beside scripts, no part of a package

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback, and in each process that a lab starts


def run(lab: Callable[[], None]) -> NoReturn:
    """Run a lab to the end of the process. What a person can correct is one line, and Ctrl-C is no error."""
    from tokenmill.errors import TokenMillError  # noqa: PLC0415 - the signal is first

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a lab ends what it has started
    try:
        sys.exit(lab())
    except TokenMillError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # it has said why
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one need not wait for what was started
        sys.exit(130)
