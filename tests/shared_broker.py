"""One broker for all processes of a test run: the first that needs it starts it, the last that leaves stops it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenmill.app.local.broker import Broker

WORKER = "PYTEST_XDIST_WORKER"
"""Set by pytest-xdist in each of its processes."""


def shared_directory(own: Path) -> Path:
    """Return the directory that all processes of the run have, where ``own`` is the base of this one's."""
    return own.parent if WORKER in os.environ else own


@contextmanager
def shared_broker(directory: Path) -> Iterator[Broker]:
    """Give the broker in ``directory`` while the block lasts; started if nobody did, stopped if nobody else uses it.

    Who uses it holds a lock, which the system ends with its process: one that was killed is not waited for.
    """
    directory.mkdir(exist_ok=True)
    with (directory / "broker.users").open("w") as users:
        with _alone(directory):
            fcntl.flock(users, fcntl.LOCK_SH)
            broker = Broker(directory / "broker")  # reads the address that the first one chose
            if not broker.running:
                broker.start(detached=True)
        try:
            yield broker
        finally:
            with _alone(directory):
                if _nobody_else(users.fileno()):
                    broker.stop()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Start and stop one at a time."""
    with (directory / "broker.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _nobody_else(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
