"""One broker for all processes of a test run: the first that needs it starts it, the last that leaves stops it.

A run can also be ended from outside (SIGTERM, SIGHUP, SIGKILL), and then none of its processes stops anything. So the
first one also starts a keeper: this module as a process of its own session, which stops the broker when nobody uses it.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import start

WORKER = "PYTEST_XDIST_WORKER"


def shared_directory(own: Path) -> Path:
    return own.parent if WORKER in os.environ else own


@contextmanager
def shared_broker(directory: Path, kind: type[Broker] = Broker) -> Iterator[Broker]:
    """Give the broker in ``directory`` while the block lasts; started if nobody did, stopped if nobody else uses it.

    Who uses it holds a lock, which the system ends with its process: one that was killed is not waited for.
    """
    directory.mkdir(exist_ok=True)
    with (directory / "broker.users").open("w") as users:
        with _alone(directory):
            fcntl.flock(users, fcntl.LOCK_SH)
            broker = kind(directory / "broker")  # reads the address that the first one chose
            if not broker.running:
                _start_keeper(directory)
                broker.start(detached=True)
        try:
            yield broker
        finally:
            with _alone(directory):
                if _nobody_else(users):
                    broker.kill()  # nobody reads its files again; in order, it would write thousands of them first


def keep(directory: Path) -> None:
    """Wait until nobody uses the broker in ``directory``, however its users ended; on return it is stopped."""
    with (directory / "broker.users").open("w") as users:
        while True:
            fcntl.flock(users, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_UN)  # who starts waits for this lock while it holds the turn: never hold both
            with _alone(directory):
                if _nobody_else(users):
                    Broker(directory / "broker").kill()
                    return


def _start_keeper(directory: Path) -> None:
    start([sys.executable, "-P", __file__, str(directory)], directory / "broker.keeper.log", detached=True)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with (directory / "broker.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _nobody_else(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
