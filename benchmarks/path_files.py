"""Which files' code runs on the three paths: a record until it is a message, a message until it is stored, a batch.

``python -m benchmarks.path_files`` runs a broker, a mill worker and a segment worker, and reads a batch of what they
stored. Python's profiler notes each function of ours that is called meanwhile. What a worker does beside the path, as
reports and looks at control topics, is left out, and so is what runs while a module is imported.
"""

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Final

import tokenmill
from benchmarks.measuring import START_SECONDS, Watched, wait_until_ready
from benchmarks.workplace import workplace
from tokenmill.app.cli import main as tokenmill_command
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches
from tokenmill.errors import StoreError
from tokenmill.store import open_partition

ROOT: Final = Path(tokenmill.__file__).parents[1]
ROOMS: Final = tuple(str(ROOT / room) for room in ("app", "consumers", "tokenmill"))
DIRECTORY: Final = Path(".tokenmill/path_files")
GOALS: Final = {"record → message": 30, "message → segment": 22, "batch": 22}
BESIDE: Final = frozenset(
    {
        *("WorkerReporter._run", "PageServer._run", "watch_compaction", "SelfWatchdog._watch", "Cluster.watch"),
        *("EraKeeper.run", "EraBringer.run", "Mill._watch_skips", "SegmentWriter._watch_control", "read_batches"),
        *("create_app.<locals>.tick", "patch_metadata_requests.<locals>.ask_after_a_pause"),
    }
)
"""What calls, at whatever depth, only work that goes on without records as well."""
BLOCKS: Final = 8
"""Of each record: several batches."""
SETTLE_SECONDS: Final = 1.0
"""After which what was begun is done: a window that is seen, an era that is closed."""


class Trace:
    """The files whose functions are called while it is `on`; `start` once, before other threads."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def start(self) -> None:
        """Watch this thread, and those that begin later."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not self.on or event != "call" or code.co_filename in self.files:
            return
        if code.co_filename.startswith(ROOMS) and code.co_flags & inspect.CO_OPTIMIZED and not _is_beside(frame):
            self.files.add(code.co_filename)


def _is_beside(frame: FrameType | None) -> bool:
    """Return whether a call is none of the path: of what goes on without records, or of an import."""
    while frame is not None:
        if frame.f_code.co_qualname in BESIDE or frame.f_code.co_name == "<module>":
            return frame.f_code.co_filename.startswith(ROOMS)
        frame = frame.f_back
    return False


def work(role: str, window: Path) -> None:
    """Run a worker; what is called while the file ``window`` is there is written beside it, once it is gone."""
    trace = Trace()

    def watch() -> None:
        while True:
            _until(window.exists)
            trace.on = True
            _until(lambda: not window.exists())
            trace.on = False
            window.with_suffix(f".{role}").write_text("\n".join(trace.files))

    threading.Thread(target=watch, daemon=True).start()
    trace.start()
    sys.argv = ["tokenmill", role]
    tokenmill_command()


def _until(is_so: Callable[[], bool], seconds: float = 0.0) -> None:
    began = time.monotonic()
    while not is_so():
        if seconds and time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s; the logs are in {DIRECTORY}")
        time.sleep(0.05)


@contextmanager
def _workers(settings: Settings, directory: Path) -> Iterator[None]:
    """Run a mill and a segment worker that own the only partition."""
    environment = {**settings.environment(), "TOKENMILL_CONFIG": "/dev/null"}
    workers = []
    for role in ("mill", "segment"):
        command = [sys.executable, "-m", "benchmarks.path_files", role, str(directory / "window")]
        log = directory / f"{role}.log"
        workers.append(Watched(role, command, log, mark=b"partition resumed", environment=environment))
    with workers[0] as mill, workers[1] as segment:
        wait_until_ready([mill, segment])
        yield


def _send(settings: Settings) -> None:
    """Send a record of `BLOCKS` blocks, and wait until they are stored."""
    before = _stored(settings)

    async def send() -> None:
        async with producer(settings) as client:
            value = b"w" * (BLOCKS * settings.block_tokens)
            await client.send_and_wait(settings.raw_topics[0], value, partition=0)

    asyncio.run(send())
    _until(lambda: _stored(settings) >= before + BLOCKS, START_SECONDS)


def _stored(settings: Settings) -> int:
    (stream,) = settings.streams()
    try:
        return open_partition(settings.store, stream.name, 0).blocks
    except StoreError:
        return 0


def _paths(directory: Path) -> dict[str, list[str]]:
    """Return the files on each path."""
    with Broker(directory / "broker", settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers, store=directory / "store", tokenizer="bytes", metrics_port=0,
            sequence_length=63, message_bytes=64, era_blocks=BLOCKS, era_max_seconds=1.0, splits={"train": 1},
        )  # fmt: skip
        asyncio.run(ensure_topics(settings, partitions=1))
        with _workers(settings, directory):
            _send(settings)  # what is done once is done
            time.sleep(SETTLE_SECONDS)
            window = directory / "window"
            window.touch()
            time.sleep(SETTLE_SECONDS)
            _send(settings)
            window.unlink()
            files = [window.with_suffix(f".{role}") for role in ("mill", "segment")]
            _until(lambda: all(file.exists() for file in files), START_SECONDS)
            found = [file.read_text().splitlines() for file in files]
        (stream,) = settings.streams()
        return dict(zip(GOALS, [*found, _batch(settings, stream.name)], strict=True))


def _batch(settings: Settings, stream: str) -> list[str]:
    """Return the files whose code gives the first three batches of a run, threads beside it included."""
    trace = Trace()
    batches = Batches(settings.store, stream, batch_size=2, sequence_length=settings.sequence_length)
    trace.start()
    trace.on = True
    list(islice(batches, 3))
    trace.on = False
    sys.setprofile(None)
    return list(trace.files)


def main() -> None:
    """Print how many files are on each path, and which."""
    with workplace(DIRECTORY):
        paths = _paths(DIRECTORY.absolute())
    for name, files in paths.items():
        print(f"{name}: {len(files)} files (goal: {GOALS[name]})")
        print(*(f"  {Path(file).relative_to(ROOT)}" for file in sorted(files)), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        work(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
