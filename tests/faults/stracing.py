"""strace beside a running process: what it calls, and calls at which it is killed or that fail."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ATTACH_SECONDS: Final = 30.0
CHANGING: Final = (
    *("openat", "mkdir", "rename", "link", "unlink", "pwrite64", "truncate", "ftruncate"),
    *("fsync", "fdatasync", "flock"),
)
"""All by which the store's writer changes, syncs and locks files; `openat` also for reading them."""
_CALL: Final = re.compile(r"(?:\d+ +)?(\w+)\((.*)")


class Call(NamedTuple):
    """One call, as strace shows it."""

    name: str
    arguments: str


@contextmanager
def stracing(process: int, output: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Watch a process and its threads from now on; inside the block strace is attached."""
    command = ["strace", "-f", "-qq", "-y", "-o", str(output), *options, "-p", str(process)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        deadline = time.monotonic() + ATTACH_SECONDS
        while not all(_is_traced(task) for task in Path(f"/proc/{process}/task").glob("*")):
            assert strace.poll() is None, (strace.stderr.read() if strace.stderr else b"").decode()
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.005)
        try:
            yield strace
        finally:
            strace.terminate()


def injection(call: str, what: str, when: int) -> str:
    """Return strace's option for something that happens at the ``when``-th such call of a thread."""
    return f"--inject={call}:{what}:when={when}"


def calls_in(output: Path) -> list[Call]:
    """Return what strace saw."""
    found = (_CALL.match(line) for line in output.read_text(errors="replace").splitlines())
    return [Call(match[1], match[2]) for match in found if match]


def _is_traced(task: Path) -> bool:
    try:
        return "TracerPid:\t0\n" not in (task / "status").read_text()
    except OSError:  # a thread that ended meanwhile
        return True
