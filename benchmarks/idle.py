"""What an idle service takes: ``python -m benchmarks.idle`` starts ``tokenmill up`` on a terminal, and prints CPU time.

Nothing is sent. After `SETTLE_SECONDS`, the CPU time of each Python process of it is taken over `SECONDS`, as a share
of one core; Kafka is not counted.
"""

import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import Final

import psutil

SETTLE_SECONDS: Final = 40.0
"""The workers have started, and their pauses have grown."""
SECONDS: Final = 60.0
SHELL_WORDS: Final = 3
"""Of a command line, enough to tell a worker."""


def cpu_seconds(process: psutil.Process) -> dict[str, float]:
    """Return the CPU time until now of a process and of all below it that run Python, by what each is."""
    found = {}
    for one in (process, *process.children(recursive=True)):
        if "java" not in one.name():
            times = one.cpu_times()
            found[f"{' '.join(one.cmdline()[-SHELL_WORDS:])} ({one.pid})"] = times.user + times.system
    return found


def swallow(terminal: int) -> None:
    """Read what is shown on a terminal until it is closed, as a screen would."""
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def main() -> None:
    """Start, wait, and print a line for each process and one for all."""
    ours, its = pty.openpty()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tokenmill.app.cli", "up", "--state", directory]
        environment = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
        service = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
        threading.Thread(target=swallow, args=[ours], daemon=True).start()
        try:
            time.sleep(SETTLE_SECONDS)
            before = cpu_seconds(psutil.Process(service.pid))
            time.sleep(SECONDS)
            shares = {
                name: (seconds - before[name]) / SECONDS
                for name, seconds in cpu_seconds(psutil.Process(service.pid)).items()
                if name in before
            }
        finally:
            service.send_signal(signal.SIGINT)
            service.wait()
    for name, share in shares.items():
        print(f"{share:7.2%}  {name}")
    print(f"{sum(shares.values()):7.2%}  of a core, over {SECONDS:.0f} idle seconds")


if __name__ == "__main__":
    main()
