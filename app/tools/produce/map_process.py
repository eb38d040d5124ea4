"""A process that runs somebody's function: what it made of rows, or where it was when it ended or hung."""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Final, NamedTuple

from tokenmill.errors import InputError

from ...process import guarded
from .own_function import COUNT_BYTES, Made

LOOK_SECONDS: Final = 0.5
"""Between two looks at whether the function has returned from a call since."""
START_SECONDS: Final = 600.0
"""How long a process may take to import the function: libraries for models take their time."""
END_SECONDS: Final = 5.0
"""How long a process that closed its pipe may take to be gone."""
_CPUS: Final = Path("/sys/devices/system/cpu")
_STANDARD_ERROR: Final = 2


class Ended(NamedTuple):
    """What stands for an answer where there is none."""

    row: int
    """In the list that was given: the one that the function had."""
    why: str
    hung: bool = False


class MapProcess:
    """A process that runs a function; at most one list of rows is with it. It ends when this process does."""

    def __init__(self, name: str, *, listed: bool) -> None:
        """Start it; ``listed``: the function takes a list of rows.

        A new program, not a fork: other threads run already, and a copy of their locks would stay locked for ever. What
        the function prints goes to standard error, for standard output is ours.
        """
        self._pipe, theirs = Pipe()
        counter = os.memfd_create("produce-map")
        os.ftruncate(counter, COUNT_BYTES)
        self._count = mmap.mmap(counter, COUNT_BYTES)
        call = f"serve({theirs.fileno()}, {counter}, {name!r}, listed={listed})"
        # Modules are where this process has them; the function finds its own (`tokenmill.stages.own_modules`).
        load = "from tokenmill.app.tools.produce.own_function import serve"
        program = f"import sys; sys.path[:] = {sys.path!r}; {load}; {call}"
        self._process = subprocess.Popen(
            guarded([sys.executable, "-P", "-c", program]),
            stdin=subprocess.DEVNULL,
            stdout=_STANDARD_ERROR,
            pass_fds=[theirs.fileno(), counter],
            start_new_session=True,  # a terminal's Ctrl-C is for us
        )
        theirs.close()
        os.close(counter)
        self._started = False

    def run(self, rows: Sequence[bytes], seconds: float, *, alone: bool = False) -> list[Made] | Ended:
        """Return what the function makes of pickled rows, in order.

        ``alone``: a function that takes lists gets each row in a list of its own. `Ended`, and the process is gone,
        where the function ends it, or does not return from a call for so many seconds.

        Raises:
            InputError: the process cannot import the function.

        """
        self._count[:] = bytes(COUNT_BYTES)
        try:
            if not self._started and (ended := self._start()):
                return ended
            self._pipe.send_bytes(pickle.dumps((list(rows), alone)))
            row, since = 0, time.monotonic()
            while not self._pipe.poll(min(LOOK_SECONDS, seconds)):
                now = time.monotonic()
                if self._row != row:
                    row, since = self._row, now
                elif now - since > seconds:
                    self.kill()
                    return Ended(row, f"it has not returned for {seconds:g} seconds", hung=True)
            return pickle.loads(self._pipe.recv_bytes())  # type: ignore[no-any-return] # noqa: S301 - ours
        except (EOFError, OSError):
            return Ended(self._row, self._how_it_ended())

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    @property
    def _row(self) -> int:
        return int.from_bytes(self._count[:], sys.byteorder)

    def _start(self) -> Ended | None:
        """Wait until the function is imported."""
        if not self._pipe.poll(START_SECONDS):
            self.kill()
            return Ended(0, f"it could not be imported in {START_SECONDS:g} seconds", hung=True)
        if why := self._pipe.recv_bytes():
            raise InputError(why.decode())
        self._started = True
        return None

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed what its process listens to"
        if code < 0:
            return f"its process was ended by signal {-code}{', as for want of memory' * (code == -signal.SIGKILL)}"
        return f"it ended its process with exit code {code}"


def physical_cores() -> int:
    """Return how many cores there are of which this process may use a processor; those of one core share it."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:  # not every kernel tells: then each counts
            cores.add(str(cpu))
    return len(cores)
