"""How a worker ends when it cannot go on: at once, with a line that says why and a code that says what to do next."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Mapping
from typing import Final, NoReturn

import structlog

from tokenmill.errors import BrokerError, FingerprintError, SettingsError, StoreError, TokenMillError, TopicError

from ..broker_contact import CONTACT, is_unreached
from ..telemetry.reporting import last_words
from .in_flight import Board

RESUME_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: a new start checks everything and continues."""
HOPELESS: Final = (SettingsError, FingerprintError, StoreError, TopicError)
"""What a new start cannot correct: a supervisor gives up on these exit codes. `DiskError`, which may pass, has another
one."""
HOPELESS_CODES: Final[Mapping[int, type[TokenMillError]]] = {error.exit_code: error for error in HOPELESS}

log = structlog.get_logger(__name__)


def end_process(reason: str, *, code: int = RESUME_CODE, error: BaseException | None = None) -> NoReturn:
    """End this process now: what is not durable yet never happened. The log says why, ``error`` included."""
    trace = None if is_unreached(error) or isinstance(error, TokenMillError) else error
    if not isinstance(error, MemoryError):  # of which a record in hand may have taken most
        Board.inherited().pardon()
    say = log.critical if code else log.info
    say("worker ends", reason=reason, code=code, error=repr(error) if error else None, exc_info=trace)
    last_words(reason if error is None else f"{reason}: {error!r}")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def end_for(error: BaseException) -> NoReturn:
    """End this process because of an error that nothing here can get over."""
    if isinstance(error, TokenMillError):  # a broker may come back, but its absence has its own code
        end_process(str(error), code=error.exit_code if isinstance(error, (*HOPELESS, BrokerError)) else RESUME_CODE)
    if is_unreached(error):
        words = CONTACT.unreached and f"{CONTACT.unreached}, which a broker named, cannot be reached"
        end_process(f"{words or 'no broker answers'}: {error!r}", code=BrokerError.exit_code)
    end_process("an unexpected error; the next start resumes from what is durable", error=error)


async def or_end(work: Awaitable[object]) -> None:
    """Await ``work``; any error in it, panics of native code included, ends this process by `end_for`.

    Else Faust would go on over a hole or stop in silence. Cancelling passes, and so does closing.
    """
    try:
        await work
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is
        end_for(error)
