"""A worker's process, as its supervisor hears and ends it: real processes that say what a worker says."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.marked import until
from tokenmill.app.supervisor.worker_slot import Child
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE
from tokenmill.app.worker.in_flight import RecordsInFlight

SECONDS: Final = 60.0
"""How long a wait may take: far longer than it should."""
BEGINNING: Final = f"""
import json, os, signal, sys, time
pipe = int(os.environ["{HEARTBEAT_VARIABLE}"])
def say(**what):
    os.write(pipe, json.dumps(what).encode() + b"\\n")
"""
"""What each script begins with."""


def state_of(pid: int) -> str:
    """Return what the kernel says that a process does: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def start(script: str, log: Path | None = None) -> Child:
    return await Child.start([sys.executable, "-c", BEGINNING + script], dict(os.environ), log)


async def test_all_that_a_process_said_is_heard_when_its_end_is_known() -> None:
    """Its last words are in the pipe for longer than it lives: here another process writes them after its end."""
    child = await start("""
process = os.getpid()
if os.fork():
    os._exit(75)
try:
    while True:  # until somebody has asked for its exit code
        os.kill(process, 0)
        time.sleep(0.01)
except ProcessLookupError:
    time.sleep(0.2)
say(ready=True)
say(ends="the disk is gone")
""")
    assert await child.wait() == 75
    assert child.words == "the disk is gone"
    assert child.status == {"ready": True}
    assert child.beats == 2


async def test_a_line_that_is_no_status_is_a_sign_of_life() -> None:
    """A full pipe may cut a line: what is whole counts, and nothing that is cut ends the listening."""
    child = await start(r"""os.write(pipe, b'{"ready": tr\n\xff\xfe\n'); say(ready=True, position=3)""")
    assert await child.wait() == 0
    assert (child.status, child.beats, child.words) == ({"ready": True, "position": 3}, 3, None)


async def test_a_process_that_is_told_to_end_may_end_in_order() -> None:
    """SIGTERM first, also to one that somebody has stopped: it is woken for that."""
    child = await start("""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
say(ready=True)
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
""")
    await asyncio.to_thread(until, lambda: state_of(child.pid) == "T", SECONDS)
    assert await child.end(grace=60.0) == 7


async def test_a_process_that_does_not_end_is_killed_after_the_grace() -> None:
    child = await start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(ready=True)\nwhile True: signal.pause()")
    async with asyncio.timeout(SECONDS):
        while not child.beats:  # noqa: ASYNC110 - a beat wakes nobody but the listener
            await asyncio.sleep(0.01)
    assert await child.end(grace=0.05) == -signal.SIGKILL


@pytest.mark.slow
async def test_what_a_dead_process_was_milling_is_known() -> None:
    """Its notes lie in memory that is ours as well; what it had done is not among them."""
    child = await start("""
from tokenmill.app.worker.in_flight import Board, Note
board = Board.inherited()
done, at_work = Note("raw", 1, board), Note("raw", 3, board)
done(1, 9); at_work(8, 12); at_work(10, 12); done.done()
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert await child.wait() == -signal.SIGKILL
    assert list(child.board.records_in_flight()) == [RecordsInFlight("raw", 3, 10, 12)]


async def test_both_outputs_are_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "mill-1.log"
    log.write_text("before\n")
    child = await start("print('out', flush=True)\nprint('err', file=sys.stderr)", log)
    assert await child.wait() == 0
    assert log.read_text() == "before\nout\nerr\n"


async def test_a_start_that_lacks_descriptors_fails_as_a_whole_and_leaves_nothing(tmp_path: Path) -> None:
    """Whichever step has none left: the error is the system's, nothing stays open, and with enough it starts."""
    child = await start("say(ready=True)")  # what the event loop opens once is open
    assert await child.wait() == 0
    child.board.close()
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    lowest = next(number for number in range(allowed[0]) if number not in before)  # the next one that is given
    refused = 0
    for more in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, allowed[1]))
        try:
            child = await start("say(ready=True)", tmp_path / "log")
        except OSError:
            refused += 1
        else:
            assert await child.wait() == 0
            child.board.close()
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        await asyncio.sleep(0)  # a transport closes at the loop's next turn
        assert descriptors() <= before  # what others left to the collector of garbage may close meanwhile
    assert child.status == {"ready": True}
    assert refused > 3


async def test_a_start_that_lacks_a_thread_is_the_systems_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has another kind of error for it, which would have ended the supervisor."""

    async def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(BlockingIOError, match="can't start new thread"):
        await start("")


def descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as found:
        own = {int(entry.name) for entry in found}
    return {number for number in own if Path(f"/proc/self/fd/{number}").exists()}
