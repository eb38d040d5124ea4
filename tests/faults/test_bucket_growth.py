"""A service fills a bucket while ranks on a host without a store train from it: killed, resumed at other world sizes.

What counts of a run is what came before the state from which the next one goes on, as with the model: up to the last
step that all its ranks have written down.
"""

import json
import shutil
import signal
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from tests import commands
from tests.app.buckets.test_upload_command import words
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.test_buckets import SECONDS, start_rank, wait_for_ranks
from tests.faults.trial import Trial
from tests.faults.working import working
from tokenmill.consumers import Batches

WORLDS: Final = (2, 3, 1, 4)
OPTIONS: Final[dict[str, Any]] = {"batch_size": 2, "seed": 3}


class Host:
    """A host that trains: the rows that count so far, and the state after them."""

    def __init__(self, address: str, stream: str, directory: Path) -> None:
        directory.mkdir()
        self.rows: list[list[int]] = []
        self._begin: str | None = None
        self._address, self._stream, self._directory = address, stream, directory
        self._ranks: list[commands.Command] = []
        self._files: list[Path] = []

    def start(self, world: int, step_seconds: float = 0.01) -> None:
        """Start the ranks of a run, which go on behind what counts."""
        self._files = [self._directory / f"rank{rank}" for rank in range(world)]
        for rank, file in enumerate(self._files):
            file.write_text("" if self._begin is None else f"{self._begin}\n")
            run = {"timeout": SECONDS, "rank": rank, "world_size": world, "step_seconds": step_seconds}
            cache = self._directory / "cache"
            self._ranks.append(start_rank(self._address, cache, file, OPTIONS | run, self._stream))

    def wait_for(self, steps: int) -> None:
        """Wait until each rank has made so many steps, or has reached the stream's end."""
        wait_for_ranks(self._ranks, lambda: min(map(len, self._steps())) >= steps)

    def kill(self, trial: Trial) -> None:
        """Kill all ranks, and take over what counts."""
        for rank in self._ranks:
            rank.kill()
            trial.fired("killed", rank.wait(SECONDS) == -signal.SIGKILL)
        self._take()

    def finish(self) -> None:
        """Wait until all ranks are at the stream's end, and take over what they gave."""
        for rank in self._ranks:
            assert rank.wait(SECONDS) == 0, rank.said
        self._take()

    def _take(self) -> None:
        self._ranks, steps = [], self._steps()
        for step in zip(*steps, strict=False):
            self.rows += chain.from_iterable(rows for rows, _ in step)
            self._begin = json.dumps([[], step[0][1]])

    def _steps(self) -> list[list[Any]]:
        """Return what each rank wrote down since it began: its rows of each step, and the state after it."""
        known = self._begin is not None
        texts = [file.read_text().rpartition("\n")[0].splitlines()[known:] for file in self._files]
        return [[json.loads(line) for line in lines] for lines in texts]


@pytest.mark.fault("cache-broken", "upload-killed", "ranks-killed")
@pytest.mark.needs("minutes")
def test_killed_ranks_of_a_bucket_that_a_service_fills_see_one_sequence(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """At world sizes 2, 3, 1 and 4, with the upload killed and the cache deleted: it is that of the service's store."""
    settings = configured(2, splits={"all": 1000}, era_blocks=48, session_timeout=2.0)
    (stream,), share = settings.streams(), tmp_path / "share"
    share.mkdir()
    upload = words(settings.store, share, "--follow")
    with working(settings) as service:
        service.wait_until((settings.store / stream.name).is_dir)
        host = Host(share.as_uri(), stream.name, tmp_path / "host")
        with Feeder(settings, trial.rng, burst=2):  # the log grows for minutes, and all of it is read at last
            uploading = commands.command(upload, tmp_path / "upload.log", {})
            service.wait_until((share / stream.name / "heads").is_dir)
            for number in range(trial.rounds(4, 24)):
                host.start(WORLDS[number % len(WORLDS)])
                host.wait_for(trial.rng.randint(2, 12))
                host.kill(trial)
                if number % 2:
                    uploading.kill()
                    trial.fired("upload killed", uploading.wait(SECONDS) == -signal.SIGKILL)
                    uploading = commands.command(upload, tmp_path / "upload.log", {})
                    shutil.rmtree(tmp_path / "host" / "cache")
                    trial.fired("deleted")
        judge(service, trial)
        ended = commands.run(["close", stream.name, "--yes"], tmp_path / "close.log", settings.environment())
        assert ended.code == 0, ended.said
        host.start(WORLDS[1], 0.0)  # there is a lot
        host.finish()
        uploading.send_signal(signal.SIGTERM)
        assert uploading.wait(SECONDS) == 0, uploading.said
    alone = Batches(settings.store, stream.name, batch_size=1, seed=OPTIONS["seed"], drop_last=False)
    wanted = list(chain.from_iterable(batch.x.tolist() for batch in alone))
    assert host.rows == wanted[: len(host.rows)]
    assert len(wanted) - len(host.rows) < OPTIONS["batch_size"] * WORLDS[1]
    trial.held("reader", steps=len(host.rows))
