"""`tokenmill produce` beside a running service, killed and called again."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.faults.oracle import partitions_of, read_topic
from tests.faults.trial import Trial
from tokenmill.app.settings import Settings

DOCUMENTS: Final = 3000
RATE: Final = "20kB"
"""Slow: a round's faults shall find it at work."""


class Producing:
    """One run over one file, from entry to `finish`."""

    def __init__(self, settings: Settings, directory: Path, trial: Trial) -> None:
        """Write the file."""
        self._settings = settings
        self._file = directory / "documents.jsonl"
        rng = trial.rng
        rows = ({"id": f"produced-{n}", "text": f"produced {n} " * rng.randrange(1, 30)} for n in range(DOCUMENTS))
        self._file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._log = directory / "produce.log"
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self, *options: str) -> "subprocess.Popen[bytes]":
        topic, servers = self._settings.raw_topics[0], self._settings.bootstrap_servers
        command = [sys.executable, "-m", "tokenmill.app.cli", "produce", topic, str(self._file)]
        command += ["--bootstrap-servers", servers, *options]
        with self._log.open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self) -> str | None:
        """Kill it in its work, if it still works, and call it again."""
        process = self._process
        assert process is not None
        process.kill()
        killed = process.wait() == -signal.SIGKILL
        self._process = self._start("--rate", RATE)
        return "produce SIGKILL" if killed else None

    def finish(self) -> None:
        """Call it once more, to its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = self._start()
        assert self._process.wait(120) == 0, self._log.read_text()

    def require_once(self) -> int:
        """Fail unless each document is in the raw topic, once; return how many there are."""
        topic = self._settings.raw_topics[0]
        values = (
            record.value or b""
            for partition in range(partitions_of(self._settings, topic))
            for record in read_topic(self._settings, topic, partition)
        )
        names = [json.loads(value)["id"] for value in values if b'"produced-' in value]
        assert len(names) == DOCUMENTS
        assert len(set(names)) == DOCUMENTS
        return DOCUMENTS

    def __enter__(self) -> Self:
        self._process = self._start("--rate", RATE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
