"""Where a loop begins whose batches workers read, whatever the others did meanwhile."""

import copy
import multiprocessing
import os
import pickle
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace

import pytest

from tokenmill.consumers.loading import LoopPlace, note_use
from tokenmill.errors import StoreError

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class Worker:
    """A process that has a copy of a place, and begins a loop when it is told to."""

    def __init__(self, place: LoopPlace) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(place, theirs), daemon=True)
        self._process.start()

    def begin(self) -> int:
        self._pipe.send("begin")
        sample: int = self._pipe.recv()
        return sample

    def go_back(self, sample: int) -> None:
        self._pipe.send(sample)
        self._pipe.recv()

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _work(place: LoopPlace, pipe: Connection) -> None:
    while (asked := pipe.recv()) is not None:
        if asked == "begin":
            pipe.send(place.begin(seed=1)["sample"])
        else:
            place.set_in_worker({"sample": asked})
            pipe.send(None)


def use(place: LoopPlace, sample: int, turn: int | None = None) -> None:
    batch = SimpleNamespace(state={"sample": sample})
    note_use(place.key, place.turn if turn is None else turn, batch)


def test_workers_that_begin_late_begin_where_the_others_did() -> None:
    """Though the loop has used batches of theirs by then; in the first loop and in later ones."""
    place = LoopPlace({"sample": 0})
    workers = [Worker(place) for _ in range(3)]
    for loop in range(3):
        assert [worker.begin() for worker in workers[:2]] == [10 * loop] * 2
        use(place, 10 * loop + 3)
        assert workers[2].begin() == 10 * loop
        use(place, 10 * loop + 10)
    later = Worker(place)
    assert later.begin() == 30
    for worker in (*workers, later):
        worker.end()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o705])
def test_a_directory_that_others_could_write_to_is_not_used(mode: int) -> None:
    """In a shared /tmp somebody else may have made it, and would say where training goes on."""
    place = LoopPlace({"sample": 0})
    directory = Path(tempfile.gettempdir()) / f"tokenmill-{place.key}-{os.getpid()}"
    directory.mkdir()
    directory.chmod(mode)
    for use_it in (lambda: use(place, 5), lambda: place.move({"sample": 1}), lambda: place.begin(seed=1)):
        with pytest.raises(StoreError, match="is not this user's alone"):
            use_it()
    directory.rmdir()
    directory.symlink_to(tempfile.gettempdir())
    with pytest.raises(StoreError, match="is not this user's alone"):
        place.begin(seed=1)
    directory.unlink()


def test_a_state_that_is_set_is_where_all_begin() -> None:
    place = LoopPlace({"sample": 0})
    worker = Worker(place)
    assert worker.begin() == 0
    use(place, 20)
    before = place.turn
    place.move({"sample": 5})
    use(place, 30, turn=before)
    assert (worker.begin(), place.state["sample"]) == (5, 5)
    worker.end()


def test_workers_that_were_given_states_lead_back() -> None:
    """What they went on from is where the next loop begins, until a batch is used or a state is set."""
    place = LoopPlace({"sample": 0})
    use(place, 50)
    workers = [Worker(place) for _ in range(2)]
    workers[0].go_back(7)
    workers[1].go_back(9)
    others = Worker(place)
    assert others.begin() == 9
    use(place, 11, turn=place.turn + 1)
    assert place.state["sample"] == 11
    place.move({"sample": 2})
    assert [worker.begin() for worker in (*workers, others)] == [2, 2, 2]
    for worker in (*workers, others):
        worker.end()


def test_copies_in_a_process_go_their_own_ways() -> None:
    place = LoopPlace({"sample": 0})
    others = [copy.deepcopy(place), pickle.loads(pickle.dumps(place))]  # noqa: S301 - our own
    use(place, 3)
    assert [one.state["sample"] for one in (place, *others)] == [3, 0, 0]
    key = place.key
    del place
    note_use(key, 0, None)


def test_nothing_is_left_behind() -> None:
    place = LoopPlace({"sample": 0})
    worker = Worker(place)
    worker.begin()
    use(place, 3)
    key = place.key
    assert len(list(Path(gettempdir()).glob(f"tokenmill-{key}-*/*"))) == 2
    worker.end()
    assert list(Path(gettempdir()).glob(f"tokenmill-{key}-*"))
    del place
    assert not list(Path(gettempdir()).glob(f"tokenmill-{key}-*"))
