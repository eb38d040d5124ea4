"""One worker process: started so that it ends with us, heard through its heartbeat, ended in order or at once."""

import asyncio
import errno
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from ..process import guarded
from ..telemetry.heartbeat import HEARTBEAT_VARIABLE
from .in_flight import BOARD_VARIABLE, Board

LONGEST_BEAT: Final = 16 << 20
"""Bytes of one status line; a partition takes about 200."""


class Child:
    """A running worker. `start` makes one; it is over when `wait` returns."""

    def __init__(self, process: asyncio.subprocess.Process, board: Board) -> None:
        """Take over a process; `start` does the rest."""
        self.board = board
        """What it is milling, even when it has died."""
        self.pid = process.pid
        self.status: Mapping[str, Any] = {}
        """The last heartbeat; empty before the first."""
        self.words: str | None = None
        """Why the worker says that it ends."""
        self.beats = 0
        self._process = process
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> Self:
        """Start a worker with ``environment``, both outputs appended to ``log``, or ours where there is none.

        The kernel kills it when this process's main thread ends. It has a session of its own: Ctrl-C at a terminal
        reaches us alone, and we end it in order.

        Raises:
            OSError: the system refuses a descriptor, a process, a thread or memory, or the log's file. Nothing is left.

        """
        ours, its = os.pipe()
        heart = os.fdopen(ours, "rb", 0)
        transport: asyncio.ReadTransport | None = None
        try:
            reader = asyncio.StreamReader(limit=LONGEST_BEAT)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), heart
            )
            with Board.file() as file:
                notes, board = file.fileno(), Board(file.fileno())
                variables = {**environment, HEARTBEAT_VARIABLE: str(its), BOARD_VARIABLE: str(notes)}
                child = cls(await _spawn(guarded(command), variables, (its, notes), log), board)
        except BaseException:
            (transport or heart).close()
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
