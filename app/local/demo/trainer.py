"""The tiny GPT of ``examples/train_gpt.py`` as a process beside the service."""

import asyncio
import importlib.util
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import tokenmill

from ...process import guarded
from ..live import TrainingStatus

EXAMPLE: Final = Path("examples/train_gpt.py")
FIRST_SECONDS: Final = 300.0
"""How long the model may wait for its first data: longer than a busy machine takes to start the service."""
NICENESS: Final = 10
"""The service comes first: on two cores, training must not slow it down."""


def example() -> Path | None:
    """Return the example's file, which is beside this package's source; None where there is no source.

    The working directory is not searched: others may have put files there.
    """
    place = Path(tokenmill.__file__).parents[1] / EXAMPLE
    return place if place.is_file() else None


def why_not() -> str | None:
    """Return why nothing can be trained here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "no training, for torch is not installed: pip install torch, or say --no-train"
    if example() is None:
        return f"no training, for {EXAMPLE} is not beside the source: run `make demo` in a clone of the repository"
    return None


class DemoTrainer:
    """Trains while `run` runs; `training` says how it goes."""

    def __init__(self, store: Path, stream: str, seconds: float, log: Path) -> None:
        self.training: TrainingStatus | None = None
        self.first: TrainingStatus | None = None
        """Its first report."""
        self.ended = asyncio.Event()
        self.code = 0
        self._log = log
        self._command = [sys.executable, str(example()), str(store), stream]
        self._command += [
            "--json",
            "--seconds",
            str(seconds),
            "--timeout",
            str(FIRST_SECONDS),
            "--threads",
            "1",
            "--cpu",
        ]

    async def run(self) -> None:
        """Train to the end; when cancelled, end the process first."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *guarded(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            await self._listen(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()  # it has nothing to save
            self.code = await process.wait()
            self.ended.set()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise TypeError("the process was started without a pipe")
        async for line in process.stdout:
            said = json.loads(line)
            self.training = TrainingStatus(said["step"], said["loss"], said["tokens_per_second"], said["wait_share"])
            self.first = self.first or self.training
        await process.wait()
