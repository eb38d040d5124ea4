"""A function of the user's own on every row (``--map``): in processes side by side, and in order."""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock, local
from typing import Final, NamedTuple

from tokenmill.errors import InputError

from ..processes import guarded
from .items import ITEM_BYTES, Bad, Content, Entry, Text, object_in
from .own_function import COUNT_BYTES, Made, Wrong, find_function
from .reading_order import AHEAD_BYTES, ReadAhead

LOOK_SECONDS: Final = 0.5
"""Between two looks at whether the function has returned from another call."""
START_SECONDS: Final = 600.0
"""How long a process may take to import the function: libraries for models take their time."""
END_SECONDS: Final = 5.0
"""How long a process that closed its pipe may take to be gone."""
_CPUS: Final = Path("/sys/devices/system/cpu")
_STANDARD_ERROR: Final = 2
BATCH: Final = 64
"""Rows that go to a process at once: a trip there costs as much as some dozen small rows."""
BATCH_BYTES: Final = 1 << 17
CALL_SECONDS: Final = 600.0
"""How long a call of the function may take by default: the first call may load a large model."""


class _ProcessEnded(NamedTuple):
    """Instead of an answer: the process has ended."""

    row: int  # in the list that was given, the one that the function was working on
    why: str
    hung: bool = False


class _MapProcess:
    """A process that runs a function; at most one list of rows is with it. It ends when this process does."""

    def __init__(self, name: str, *, listed: bool) -> None:
        """Start the process; ``listed``: the function takes a list of rows.

        A new program, not a fork: other threads run already, and a copy of their locks would stay locked for ever. What
        the function prints goes to standard error: standard output is the command's own.
        """
        self._pipe, theirs = Pipe()
        counter = os.memfd_create("produce-map")
        os.ftruncate(counter, COUNT_BYTES)
        self._count = mmap.mmap(counter, COUNT_BYTES)
        call = f"serve({theirs.fileno()}, {counter}, {name!r}, listed={listed})"
        # Modules are where this process has them; the function finds its own (`app.milling.foreign_code`).
        load = "from tokenmill.app.sources.own_function import serve"
        program = f"import sys; sys.path[:] = {sys.path!r}; {load}; {call}"
        self._process = subprocess.Popen(
            guarded([sys.executable, "-P", "-c", program]),
            stdin=subprocess.DEVNULL,
            stdout=_STANDARD_ERROR,
            pass_fds=[theirs.fileno(), counter],
            start_new_session=True,  # a terminal's Ctrl-C is for the command alone
        )
        theirs.close()
        os.close(counter)
        self._started = False

    def run(self, rows: Sequence[bytes], seconds: float, *, alone: bool = False) -> list[Made] | _ProcessEnded:
        """Return what the function makes of pickled rows, in order; ``alone``: it gets each in a list of its own.

        Returns `_ProcessEnded`, and the process is gone, if the function ends it, or takes longer than ``seconds``.
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
                    return _ProcessEnded(row, f"it has not returned for {seconds:g} seconds", hung=True)
            return pickle.loads(self._pipe.recv_bytes())  # type: ignore[no-any-return] # noqa: S301 - ours
        except (EOFError, OSError):
            return _ProcessEnded(self._row, self._how_it_ended())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def _row(self) -> int:
        return int.from_bytes(self._count[:], sys.byteorder)

    def _start(self) -> _ProcessEnded | None:
        if not self._pipe.poll(START_SECONDS):
            self.kill()
            return _ProcessEnded(0, f"it could not be imported in {START_SECONDS:g} seconds", hung=True)
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
    """Return the number of physical cores that this process may use; processors of one core share it."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip())
        except OSError:  # not every kernel says so: then each processor counts
            cores.add(str(cpu))
    return len(cores)


class _Packed(NamedTuple):
    """An entry on its way to the function: pickled, so that its size is known, whatever it is."""

    number: int
    at: int
    row: bytes | None  # None: the function is not called
    content: Content = None

    @classmethod
    def of(cls, entry: Entry) -> "_Packed":
        number, at, content = entry
        if isinstance(content, Text):
            with suppress(UnicodeDecodeError):  # else as it is, for it will be refused as what it is
                return cls(number, at, pickle.dumps({"text": content.data.decode()}))
        if content is None or isinstance(content, (Bad, Text)):
            return cls(number, at, None, content)
        return cls(number, at, pickle.dumps(content))

    @property
    def memory(self) -> int:
        kept = len(self.content.data) if isinstance(self.content, (Bad, Text)) else 0
        return len(self.row or b"") + kept + ITEM_BYTES

    def with_made(self, made: Made) -> Entry:
        content: Content
        if isinstance(made, Wrong):
            row = pickle.loads(self.row or b"")  # noqa: S301 - ours
            if isinstance(row, bytes) and object_in(row) is None:  # who makes documents says why
                content = row
            else:
                content = Bad(f"--map: {made.why}", row if isinstance(row, bytes) else b"")
        else:
            content = Text(made.encode("utf-8", "surrogatepass")) if isinstance(made, str) else made
        return self.number, self.at, content


class _Sent(NamedTuple):
    made: Future[list[Entry]]
    memory: int


class Mapping:
    """A function, given as ``module:function``, and the processes that run it.

    It is called with each row as a dict and returns a dict, a text, or None for what is not wanted; or, if ``batch`` is
    given, with a list of so many rows at most, and returns a list of as many of these. It must give the same answer for
    a row each time, whatever others are in the list. What it raises is a refusal of its row.
    """

    def __init__(
        self, name: str, processes: int | None = None, batch: int | None = None, seconds: float = CALL_SECONDS
    ) -> None:
        """Import the function once, to check that it exists; InputError where it does not.

        Without a number of ``processes`` there is one for each physical core. A call may take ``seconds``.
        """
        self.name = name
        self.batch = batch
        self._seconds = seconds
        find_function(name)
        self._processes = processes or physical_cores()
        self._rows, self._bytes = (BATCH, BATCH_BYTES) if batch is None else (batch, 1 << 20)
        # A thread for each process: it knows what its process is doing, and makes another one should it end.
        self._threads = ThreadPoolExecutor(self._processes, thread_name_prefix="produce-map")
        self._own = local()
        self._running: set[_MapProcess] = set()
        self._lock = Lock()
        self._closed = False

    def of(self, entries: Iterator[Entry], *, name: str = "the source", piped: bool = False) -> Iterator[Entry]:
        """Yield the entries with what the function makes of their content, in order; an error in reading comes last.

        A thread reads them ahead, so far that each process has something to do. Where they are ``piped``, each goes to
        a process as soon as it is there, and is yielded without waiting for the next one: a pipe may pause.

        Raises InputError where a process died while it ran the function, twice, or the function does not return; names
        the row of the source ``name``. All batches before that row's are yielded.
        """
        packed = map(_Packed.of, entries)
        batches = self._at_hand(packed) if piped else self._full(packed)
        with ReadAhead(self._sent(batches, name), max(AHEAD_BYTES, (self._processes + 1) * self._bytes)) as ahead:
            while (sent := ahead.wait(None)) is not None:
                yield from sent.made.result()

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._running):
            process.kill()

    def _sent(self, batches: Iterator[list[_Packed]], name: str) -> Iterator[_Sent]:
        for batch in batches:
            size = sum(packed.memory for packed in batch)
            yield _Sent(self._threads.submit(self._made, batch, name), size)

    def _made(self, batch: list[_Packed], name: str) -> list[Entry]:
        asked = [packed for packed in batch if packed.row is not None]
        rows = [packed.row or b"" for packed in asked]
        made = self._run(rows, alone=False) if rows else []
        if isinstance(made, _ProcessEnded) and (self.batch is not None or not made.hung):
            # Once more: the system may have ended it because others took the memory. A list is tried row by row, which
            # shows the row that does it. What hung on a single row is not tried again.
            made = self._run(rows, alone=True)
        if isinstance(made, _ProcessEnded):
            number = asked[min(made.row, len(asked) - 1)].number
            where, time = f"{name}:{number}" if number else name, ", give it more time (--map-timeout)"
            raise InputError(
                f"--map {self.name}: {made.why}, at {where}. What was sent remains. Let the function take less"
                f"{time if made.hung else ''}, or return None for that row; the same command then goes on"
            )
        answers = iter(made)
        return [
            (packed.number, packed.at, packed.content) if packed.row is None else packed.with_made(next(answers))
            for packed in batch
        ]

    def _run(self, rows: list[bytes], *, alone: bool) -> list[Made] | _ProcessEnded:
        process = self._process()
        made = process.run(rows, self._seconds, alone=alone)
        if isinstance(made, _ProcessEnded):
            with self._lock:
                self._running.discard(process)
            self._own.process = None
        return made

    def _process(self) -> _MapProcess:
        process: _MapProcess | None = getattr(self._own, "process", None)
        with self._lock:
            if self._closed:
                raise CancelledError
            if process is None:
                process = self._own.process = _MapProcess(self.name, listed=self.batch is not None)
                self._running.add(process)
        return process

    def _full(self, entries: Iterator[_Packed]) -> Iterator[list[_Packed]]:
        """Yield full batches; what was read before an error is yielded before it is raised."""
        batch: list[_Packed] = []
        size = 0
        try:
            for packed in entries:
                batch.append(packed)
                size += packed.memory
                if len(batch) >= self._rows or size >= self._bytes:
                    yield batch
                    batch, size = [], 0
        except Exception:
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    def _at_hand(self, entries: Iterator[_Packed]) -> Iterator[list[_Packed]]:
        """Yield batches of what is there, even if it is one entry; another thread reads them."""
        with ReadAhead(entries) as ahead:
            while (first := ahead.wait(None)) is not None:
                batch, size = [first], first.memory
                while len(batch) < self._rows and size < self._bytes and (more := ahead.take_now()) is not None:
                    batch.append(more)
                    size += more.memory
                yield batch
