"""Where the loops over a dataset stand that worker processes read for.

A loader does not let its dataset know that a loop begins, or what the loop got. So batches that come out of a worker
tell the process that uses them, each once, when its x or y is asked for; and workers ask where to begin through files,
for those that live on from loop to loop (``persistent_workers=True``) have an old copy of the dataset.
"""

import json
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final
from uuid import uuid4

from tokenmill.errors import StoreError

State = dict[str, Any]
"""A state of `Batches`."""

_PLACES: Final[weakref.WeakValueDictionary[str, "LoopPlace"]] = weakref.WeakValueDictionary()
"""Those of this process, by key: batches from workers find theirs here."""


class LoopPlace:
    """A state of `Batches` that moves on with the batches that are used, in the process that loops.

    The copies of it in that process's workers read where a loop begins, and never move.
    """

    def __init__(self, state: State) -> None:
        self._key = uuid4().hex
        self.state = state
        self.turn = 0
        """Counts the states that were set: what was used before one says nothing of what comes after it."""
        self._loops = 0
        """Loops that this copy began, as that of a worker."""
        self._born = ""
        """With what the worker's copy began its life."""
        self._enter()

    def move(self, state: State) -> None:
        """Stand at a state that was set."""
        files = list(self._directory(os.getpid()).glob("place-*"))
        self.turn = max([self.turn, *(_read(file)[0] for file in files)]) + 1  # workers may have been told to go back
        self.state = state
        for file in files:
            file.unlink()
        self._publish(os.getpid())

    def advance(self, turn: int, state: State) -> None:
        """Stand at the state after a batch that is used, if that is further on."""
        if (turn, state["sample"]) > (self.turn, self.state["sample"]):
            self.turn, self.state = turn, state
            self._publish(os.getpid())

    def begin(self, seed: int) -> State:
        """Return where a loop begins, in one of its workers; the same in all of them, whatever is used meanwhile.

        Args:
            seed: any number that its workers share, and that other loaders hardly have.

        """
        if not self._loops:
            self._born = f"{seed}-{self.turn}-{self.state['sample']}"
        directory = self._directory(_looping())
        found = [(self.turn, self.state), *map(_read, directory.glob("place-*"))]
        proposed = _write(directory, *max(found, key=lambda one: (one[0], one[1]["sample"])))
        agreed = directory / f"loop-{self._born}-{self._loops}"
        try:
            os.link(proposed, agreed)  # the first one decides: what the others find may be of this loop already
        except FileExistsError:
            pass
        finally:
            proposed.unlink()
        self.turn, self.state = _read(agreed)
        self._loops += 1
        return self.state

    def set_in_worker(self, state: State) -> None:
        """Note, in each worker of a loop that was told to go on from a state of its own, what that is.

        The process that loops hears of it with the first batch that it uses, other workers through `begin`.
        """
        self.turn += 1
        self.state = state
        self._loops += 1
        self._publish(_looping())

    @property
    def key(self) -> str:
        """By which batches find this place."""
        return self._key

    def __getstate__(self) -> dict[str, Any]:
        return {"_key": self._key, "turn": self.turn, "state": self.state, "_loops": 0, "_born": ""}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        if self._key in _PLACES:  # a copy in the same process goes its own way
            self._key = uuid4().hex
        self._enter()

    def _enter(self) -> None:
        _PLACES[self._key] = self
        weakref.finalize(self, _remove, self._directory(os.getpid()), os.getpid())

    def _publish(self, looping: int) -> None:
        directory = self._directory(looping)
        _write(directory, self.turn, self.state).replace(directory / f"place-{os.getpid()}")

    def _directory(self, process: int) -> Path:
        """Return where a process that loops and its workers meet: nobody guesses the name, and nobody else may read.

        Raises:
            StoreError: somebody else has made it, who would say where training goes on.

        """
        directory = Path(tempfile.gettempdir()) / f"tokenmill-{self._key}-{process}"
        with suppress(FileNotFoundError):
            status = directory.lstat()
            if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise StoreError(f"{directory} is not this user's alone: remove it, or set TMPDIR to a folder of yours")
        return directory


def note_use(key: str, turn: int, batch: Any) -> None:
    """Note that the process that loops uses a batch; nothing where it has let go of the dataset."""
    place = _PLACES.get(key)
    if place is not None:
        place.advance(turn, batch.state)


def _looping() -> int:
    """Return the process that loops, in one of its workers."""
    found = parent_process()
    return os.getpid() if found is None or found.pid is None else found.pid


def _write(directory: Path, turn: int, state: State) -> Path:
    """Return a file, of this process's own, that holds these."""
    directory.mkdir(mode=0o700, exist_ok=True)
    file = directory / f"new-{os.getpid()}"
    file.write_text(json.dumps([turn, state]))
    return file


def _read(file: Path) -> tuple[int, State]:
    turn, state = json.loads(file.read_text())
    return turn, state


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked worker has the object, too
        shutil.rmtree(directory, ignore_errors=True)
