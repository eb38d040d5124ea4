"""The disk under a real segment worker is full, takes no more, refuses, or is gone; then it is as it was."""

import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder, following
from tests.faults.oracle import assert_stores_again, judge, milled
from tests.faults.serving import Serving
from tests.faults.trial import Trial
from tests.service import Service, Worker
from tokenmill.app.worker.ending import RESUME_CODE


class SmallDisk:
    """A tmpfs, mounted at ``mount`` for processes that are started with `prefix`, from entry to exit.

    Its content stays while it is unmounted, and can be seen from outside all the time under `seen`.
    """

    def __init__(self, directory: Path) -> None:
        self.mount = directory / "disk"
        self.prefix: Sequence[str] = ()
        self._back = directory / "back"
        self._protected = directory / "protected"
        for path in (self.mount, self._back, self._protected):
            path.mkdir()

    def __enter__(self) -> Self:
        script = (
            f"mount -t tmpfs -o size=64M tmpfs {self._back} && mount --bind {self._back} {self.mount} "
            f"&& mount --bind {self._back} {self._protected} && mount -o remount,bind,ro {self._protected} "
            "&& echo mounted && exec sleep infinity"
        )
        command = ["unshare", "-Urm", "--propagation", "private", "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        self.prefix = ("nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def seen(self) -> Path:
        return Path(f"/proc/{self._holder.pid}/root") / self._back.relative_to("/")

    def fill(self) -> int:
        """Leave not a byte of room; return the size of what fills it."""
        with (self.seen / "ballast").open("ab", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))
            return ballast.tell()

    def free(self) -> None:
        (self.seen / "ballast").unlink()

    def protect(self) -> None:
        """Let nothing be opened for writing any more; what is open can still be written to."""
        # Read-only from its first moment: once something on it is open for writing, a mount cannot become so any more.
        self._do("mount", "--bind", str(self._protected), str(self.mount))

    def unmount(self) -> None:
        """Take away what was mounted last: the disk, or its protection."""
        self._do("umount", "--lazy", str(self.mount))

    def mount_again(self) -> None:
        self._do("mount", "--bind", str(self._back), str(self.mount))

    def _do(self, *command: str) -> None:
        subprocess.run([*self.prefix, *command], check=True)


@pytest.mark.fault("disk-full", "disk-gone")
@pytest.mark.needs("minutes")
def test_a_worker_whose_disk_refuses_says_so_and_the_next_one_goes_on(configured: Configured, trial: Trial) -> None:
    """No file may grow, no file may be opened, the directory is moved away: exit code 75 and one reason each time."""
    settings = configured(1, session_timeout=2.0, splits={"train": 1000})
    away = settings.store.with_name("away")

    faults: dict[str, tuple[Callable[[Worker], object], Callable[[], object]]] = {
        # a segment's tokens are 1,024 bytes; its log is a file, too, and longer: it can say nothing there
        "File too large": (lambda worker: limit(worker, resource.RLIMIT_FSIZE, 300), lambda: None),
        "Too many open files": (lambda worker: limit(worker, resource.RLIMIT_NOFILE, 0), lambda: None),
        "No such file or directory": (lambda _: settings.store.rename(away), lambda: away.rename(settings.store)),
    }
    with Service(settings, settings.store.parent) as service:
        service.mill()
        with Feeder(settings, trial.rng, burst=1), following(settings.store) as reader:
            for reason in trial.rng.sample([*faults], len(faults)) * trial.rounds(1, 5):
                break_it, mend = faults[reason]
                worker = service.segment()
                service.wait_until(lambda: any(p["block"] for p in worker.partitions.values()))  # noqa: B023
                break_it(worker)
                assert service.wait_until_ended(worker) == RESUME_CODE
                assert reason in (worker.beats.words or "")
                assert "tries again by itself" in (worker.beats.words or "")
                trial.fired(reason)
                mend()
                service.workers.remove(worker)
            service.segment()
            assert_stores_again(service, trial)
        judge(service, trial)
    trial.held("loud", "reader", read=sum(map(len, reader.values())))


def limit(worker: Worker, what: int, soft: int) -> None:
    _, hard = resource.prlimit(worker.process.pid, what)
    resource.prlimit(worker.process.pid, what, (soft, hard))


@pytest.mark.fault("disk-full", "disk-gone")
@pytest.mark.needs("mount")
def test_a_disk_that_is_full_or_gone_is_waited_for(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A real small disk runs full, becomes read-only, is unmounted: loud, not too loud, and mended all goes on."""
    with SmallDisk(tmp_path) as disk:
        settings = configured(2, session_timeout=2.0, splits={"train": 500, "dev": 500}, store=disk.seen / "store")
        faults: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
            "full": (disk.fill, disk.free, "No space left on device"),
            "read-only": (disk.protect, disk.unmount, "Read-only file system"),
            "unmounted": (disk.unmount, disk.mount_again, "no longer holds the store"),
        }
        there = settings.model_copy(update={"store": disk.mount / "store"})
        serving = Serving(there, tmp_path, "--only", "segment", prefix=disk.prefix)
        with Service(settings, tmp_path) as service, serving:
            service.mill()
            with Feeder(settings, trial.rng, burst=1):
                service.wait_until(lambda: bool(milled(service)) and (settings.store / "store.json").exists())
                with following(settings.store) as reader:
                    for name in trial.rng.sample([*faults], len(faults)) * trial.rounds(1, 2):
                        assert_stores_again(service, trial)
                        break_it, mend, reason = faults[name]
                        mark = len(serving.log)
                        break_it()
                        service.wait_until(lambda: reason in serving.log[mark:])  # noqa: B023
                        trial.fired(name)
                        mark = len(serving.log)
                        time.sleep(20.0)  # long enough for several starts, and to count what is said
                        lines = serving.log[mark:].count("\n")
                        assert lines <= 100, serving.log[mark:]
                        mend()
                        assert_stores_again(service, trial)
                        trial.held("loud", lines=lines)
            judge(service, trial)
            assert serving.running, serving.log[-4000:]
            assert serving.stop() == 0
        trial.held("reader", read=sum(map(len, reader.values())))
    assert not (disk.mount / "store").exists(), "a store was begun where the disk was not mounted"
