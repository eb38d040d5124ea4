"""A worker's slot: keeps a process running in it, hears its heartbeats, and ends it in order or at once."""

import asyncio
import errno
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import structlog

from tokenmill.errors import BrokerError

from ..broker_contact import CONTACT
from ..kafka.clients import FAILING
from ..processes import guarded
from ..settings import Settings
from ..settings.model import CONFIG_VARIABLE
from ..tasks import Backoff
from ..telemetry.reporting import HEARTBEAT_VARIABLE, STORE_VARIABLE, Role
from ..telemetry.status_document import State
from ..worker.ending import HOPELESS_CODES, RESUME_CODE
from ..worker.in_flight import BOARD_VARIABLE, Board
from ..worker.watchdog import WatchLimits

if TYPE_CHECKING:
    from .supervisor import Supervisor


class Child:
    """A running worker. `start` makes one; it is over when `wait` returns."""

    def __init__(self, process: asyncio.subprocess.Process, board: Board) -> None:
        self.board = board  # what it is milling, even when it has died
        self.pid = process.pid
        self.status: Mapping[str, Any] = {}  # the last heartbeat; empty before the first
        self.words: str | None = None
        self.beats = 0
        self._process = process
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
        shared: Mapping[str, int] = MappingProxyType({}),
    ) -> Self:
        """Start a worker, its outputs appended to ``log``, or ours; it inherits and learns of ``shared`` descriptors.

        The kernel kills it when this process's main thread ends. It has a session of its own: Ctrl-C at a terminal
        reaches us alone. Raises OSError where the system refuses a descriptor, a process, a thread or memory; nothing
        is left then.
        """
        ours, its = os.pipe()
        heartbeats = os.fdopen(ours, "rb", 0)
        transport: asyncio.ReadTransport | None = None
        try:
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(limit=16 << 20)  # of one line; a partition takes about 200 bytes
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), heartbeats)
            with Board.file() as file:
                notes, board = file.fileno(), Board(file.fileno())
                inherited = {HEARTBEAT_VARIABLE: its, BOARD_VARIABLE: notes, **shared}
                variables = {**environment, **{name: str(number) for name, number in inherited.items()}}
                child = cls(await _spawn(guarded(command), variables, (*inherited.values(),), log), board)
        except BaseException:
            (transport or heartbeats).close()
            raise
        finally:
            os.close(its)
        child._listener = asyncio.create_task(child._listen(transport, reader), name=f"listen to {child.pid}")
        return child

    async def _listen(self, transport: asyncio.ReadTransport, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._hear(line)
        finally:
            transport.close()

    def _hear(self, line: bytes) -> None:
        with suppress(ValueError):  # a line that a full pipe cut, and its rest, are signs of life all the same
            beat = json.loads(line)
            if "ends" in beat:
                self.words = str(beat["ends"])
            else:
                self.status = beat
        self.beats += 1

    async def wait(self) -> int:
        """Return the exit code once the process has ended and all that it said is heard; -n for signal n."""
        code = await self._process.wait()
        if self._listener is not None:
            await self._listener
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self, grace: float) -> int:
        """End it with SIGTERM, after ``grace`` seconds with SIGKILL; return the exit code."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped one would not see SIGTERM
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(self.wait())), grace)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            return await self.wait()


async def _spawn(
    command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int], log: Path | None
) -> asyncio.subprocess.Process:
    output = None if log is None else log.open("ab")
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=descriptors,
            start_new_session=True,
        )
    except RuntimeError as error:  # of a thread that cannot be started: Python has no error of the system's for it
        raise OSError(errno.EAGAIN, str(error)) from error
    finally:
        if output is not None:
            output.close()


LOOK_SECONDS: Final = 1.0
SILENT_LOOKS: Final = 4
"""Looks without a beat after which a worker is shown as silent: with a beat a second at least, no accident."""
STEADY_SECONDS: Final = 30.0
"""A process that lives as long does not end as those before it did, which ended again and again."""


Cause = Literal["watchdog", "killed", "resume", "broker", "not started", "error"]
CAUSES: Final[Mapping[Cause, str]] = {
    "watchdog": "the supervisor killed it: it was silent, or made no progress",
    "killed": "somebody else killed it",
    "resume": "it ended to check everything and continue",
    "broker": "no broker answered",
    "not started": "the system refused to start it: no descriptor, process, thread or memory was left",
    "error": "another exit code",
}


@dataclass(eq=False)
class WorkerSlot:
    """`keep` does the work; the fields say how it is going."""

    role: Role
    name: str
    listener: "Supervisor"
    _: KW_ONLY
    settings: Settings
    limits: WatchLimits
    log: Path | None
    shared: Mapping[str, int] = field(default_factory=dict)
    child: Child | None = None
    starts: int = 0
    restarts: Counter[Cause] = field(default_factory=lambda: Counter(dict.fromkeys(CAUSES, 0)))
    """How often the process ended and was, or will soon be, started again, by cause."""
    next_start: float | None = None
    """When, on the monotonic clock, the next process is started; None while one runs."""
    stopping: bool = False
    """Whether we end the process ourselves, for good."""
    _silent_looks: int = 0
    _verdict: str | None = None
    _quick_ends: list[str] = field(default_factory=list)
    _started: float = 0.0

    def __post_init__(self) -> None:
        # Ours, with exactly these settings, and no other file of settings.
        self._environment = {**os.environ, **self.settings.environment(), CONFIG_VARIABLE: os.devnull}
        self._backoff = Backoff(self.limits.first_backoff, self.limits.longest_backoff, self.limits.healthy)

    @property
    def failing(self) -> str | None:
        """Return that processes end again and again here, and how; None where the present one may be relied on."""
        ends = self._quick_ends
        if len(ends) < 2 or time.monotonic() - self._started >= STEADY_SECONDS:  # noqa: PLR2004 - again
            return None
        return f"{self.name} has ended {len(ends)} times in a row, the last time with {ends[-1]}"

    @property
    def state(self) -> State:
        """What can be said of the process in a word."""
        if self.child is None:
            return "ended"
        if self._silent_looks >= SILENT_LOOKS and self.ready:
            return "silent"
        if self.ready:
            return "running" if self.child.status.get("away_since") is None else "cut off"
        return "starting"

    @property
    def ready(self) -> bool:
        """Whether the worker can own partitions."""
        return self.child is not None and bool(self.child.status.get("ready"))

    async def keep(self) -> None:
        """Keep a worker running until cancelled; on return none runs. A start that is refused is tried again, for ever.

        Raises TokenMillError, with the worker's exit code, where it ended with what a new start cannot repair.
        """
        while True:
            self._started = time.monotonic()
            try:
                running = await self._start()
            except OSError as error:  # as after a process that lived for no time
                pause = self._backoff.next()
                self.restarts["not started"] += 1
                self.listener.not_started(self, str(error), pause)
                await self._pause(pause)
                continue
            code, reason = await self._run_one(running)
            child, self.child = self.child, None
            if child is None:
                return
            if code in HOPELESS_CODES:
                self.listener.ended(self, child, reason, None)
                raise HOPELESS_CODES[code](f"{self.name} cannot go on: {child.words or 'its log says why'}")
            lived = time.monotonic() - self._started
            self.restarts[cause := self._cause(code)] += 1
            if lived >= self.limits.healthy:
                self._quick_ends.clear()
            elif cause != "broker":  # which is not its fault, and said elsewhere
                self._quick_ends.append(describe(code, None))
            pause = self._backoff.next(lived)
            self.listener.ended(self, child, reason, pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Wait so long before the next start, and for a broker that answers."""
        self.next_start = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        while CONTACT.away_since is not None:  # noqa: ASYNC110 - there is no event to wait for; it could do nothing but end again
            await asyncio.sleep(LOOK_SECONDS)
        self.next_start = None

    def kill(self, reason: str) -> None:
        """Kill the process with SIGKILL because of ``reason``; another one is started in its place."""
        if self.child is not None:
            self._verdict = reason
            self.child.signal(signal.SIGKILL)

    async def _start(self) -> Child:
        self._verdict, self._silent_looks = None, 0
        command = [sys.executable, "-P", "-m", "tokenmill.app.cli", self.role]
        child = self.child = await Child.start(command, self._environment, self.log, self.shared)
        self.starts += 1
        return child

    async def _run_one(self, child: Child) -> tuple[int, str]:
        self.listener.started(self, child)
        waiter = asyncio.ensure_future(child.wait())
        try:
            beats = 0
            while not (await asyncio.wait({waiter}, timeout=LOOK_SECONDS))[0]:
                beats = self._hear(child, beats)
            code = await waiter
        except BaseException:  # cancelled
            self.stopping = True
            code = await child.end(self.limits.grace)
            self.listener.ended(self, child, describe(code, child.words), None)
            self.child = None
            raise
        return code, self._verdict or describe(code, child.words)  # our own reason if it was we who killed it

    def _cause(self, code: int) -> Cause:
        if self._verdict:
            return "watchdog"
        known: dict[int, Cause] = {RESUME_CODE: "resume", BrokerError.exit_code: "broker"}
        return "killed" if code < 0 else known.get(code, "error")

    def _hear(self, child: Child, beats: int) -> int:
        """Count looks, not seconds: if this process was stopped itself, the worker is not to blame."""
        if child.beats != beats:
            self._silent_looks = 0
            if store := child.status.get("store"):
                self._environment[STORE_VARIABLE] = store
            self.listener.heard(self, child)
            return child.beats
        self._silent_looks += 1
        limit = self.limits.heartbeat if self.ready else max(self.limits.heartbeat, self.limits.start)
        if self._silent_looks * LOOK_SECONDS >= limit:
            self.kill(f"no heartbeat for {limit:.0f} s")
        return beats


def describe(code: int, words: str | None) -> str:
    """Return in words how a process ended."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {words}" if words else how


log = structlog.get_logger(__name__)


async def keep_uploading(settings: Settings, address: str, grace: float) -> None:
    """Have the store brought into a bucket until cancelled; the upload has ``grace`` seconds to end in order then.

    One that ends is started again, whatever it ended with: neither mills nor segment worker need the bucket.
    """
    backoff, name = Backoff(1.0, 60.0, healthy=60.0), f"the upload to {address}"
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
