"""A small real disk that can fill up, become read-only, and be unmounted, without root: in a name space of its own."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SIZE: Final = 64 << 20
"""Bytes of the disk."""


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
            f"mount -t tmpfs -o size={SIZE} tmpfs {self._back} && mount --bind {self._back} {self.mount} "
            f"&& mount --bind {self._back} {self._protected} && mount -o remount,bind,ro {self._protected} "
            "&& echo mounted && exec sleep infinity"
        )
        command = ["unshare", "-Urm", "--propagation", "private", "sh", "-c", script]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        self.prefix = ("nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()

    @property
    def seen(self) -> Path:
        """The disk's content, for processes outside."""
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
        """Make room again."""
        (self.seen / "ballast").unlink()

    def protect(self) -> None:
        """Let nothing be opened for writing any more; what is open can still be written to."""
        # Read-only from its first moment: once something on it is open for writing, a mount cannot become so any more.
        self._do("mount", "--bind", str(self._protected), str(self.mount))

    def unmount(self) -> None:
        """Take away what was mounted last: the disk, or its protection."""
        self._do("umount", "--lazy", str(self.mount))

    def mount_again(self) -> None:
        """Bring the disk back."""
        self._do("mount", "--bind", str(self._back), str(self.mount))

    def _do(self, *command: str) -> None:
        subprocess.run([*self.prefix, *command], check=True)
