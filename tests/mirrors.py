"""Mirrors as processes of their own, and what must be equal in all stores of a stream."""

from pathlib import Path
from typing import Final, Self

from tests.commands import command
from tokenmill.app.settings import Settings

EQUAL: Final = ("*/*.bin", "*/*.docs", "*/*.json", "*/*.idx", "*/*.index", "eras.jsonl", "stream.json")
"""In a stream's directory; of segments, those that are sealed."""
SECONDS: Final = 90.0


class Mirroring:
    """``tokenmill mirror`` into a directory, killed at the end of the block."""

    def __init__(self, settings: Settings, store: Path, *arguments: str, port: int = 0) -> None:
        self.store = store
        self.log_path = store.with_name(f"{store.name}.log")
        names = [stream.name for stream in settings.streams()]
        environment = settings.model_copy(update={"store": store, "metrics_port": port}).environment()
        self.process = command(["mirror", *names, *arguments], self.log_path, environment)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def mirror_once(settings: Settings, store: Path, *arguments: str) -> tuple[int, str]:
    with Mirroring(settings, store, "--once", *arguments) as mirroring:
        return mirroring.wait(), mirroring.log


def equal_files(store: Path, stream: str, first: int = 0) -> dict[str, bytes]:
    """Return what must be equal in all stores that hold the same blocks, of each partition from block ``first`` on."""
    directory = store / stream
    found = {str(file.relative_to(directory)): file for pattern in EQUAL for file in directory.glob(pattern)}
    return {
        name: file.read_bytes()
        for name, file in found.items()
        if file.parent == directory or (file.name[:12].isdecimal() and int(file.name[:12]) >= first)
    }
