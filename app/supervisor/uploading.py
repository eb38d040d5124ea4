"""``tokenmill serve --upload-to``: an upload that follows the store, as a child of this process."""

import asyncio
import os
import sys
import time
from typing import Final

import structlog

from ..backoff import Backoff
from ..kafka.retry import FAILING
from ..settings import Settings
from ..settings.load import CONFIG_VARIABLE
from .worker_slot import Child, describe

log = structlog.get_logger(__name__)

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds until the next start; doubled each time, and the first again after as long a life."""


async def keep_uploading(settings: Settings, address: str, grace: float) -> None:
    """Have the store's streams brought into a bucket until cancelled; on return no upload runs.

    An upload that ends is started again, whatever it ended with, and why is in the log and in the status: neither mills
    nor segment worker need the bucket. Cancelled, it has ``grace`` seconds to end in order.
    """
    backoff, name = Backoff(FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE), f"the upload to {address}"
    environment = {**os.environ, **settings.environment(), CONFIG_VARIABLE: os.devnull}
    command = [sys.executable, "-P", "-m", "tokenmill.app.cli", "upload", "--to", address, "--follow"]
    while True:
        started = time.monotonic()
        try:
            child = await Child.start(command, environment, None)
        except OSError as error:
            reason = f"cannot be started ({error})"
        else:
            log.info("upload started", to=address, pid=child.pid)
            FAILING.pop(name, None)
            try:
                reason = describe(await child.wait(), child.words)
            except asyncio.CancelledError:
                await child.end(grace)
                raise
            finally:
                child.board.close()
        pause = backoff.next(time.monotonic() - started)
        FAILING[name] = f"{reason}: see the log"
        log.error("upload ended", to=address, reason=reason, restart_in=pause)
        await asyncio.sleep(pause)
