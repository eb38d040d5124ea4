"""Whose samples a process gets that does not say which rank it is."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch.utils.data import DataLoader

from tests.consumers.packed import text_store
from tests.consumers.scenes import era_store, halves, open_batches, open_halves, open_steps, rows_of, together
from tests.store.chains import STREAM
from tokenmill.consumers import BucketSampler, Documents, EraSampler, MixtureDataset, PaddedBatches, StratifiedSampler
from tokenmill.consumers.arguments import _LAUNCHERS
from tokenmill.errors import InputError


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", *(name for launcher in _LAUNCHERS for name in launcher[1:])):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores")
    era_store(path / "blocks")
    text_store(path / "texts", [3, 9, 4, 6] * 6)
    return path


@contextmanager
def process_group(rank: int, world_size: int) -> Iterator[None]:
    """Be one of several processes, of which the others are not there."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def by_batches(there: Path, **options: Any) -> Any:
    return rows_of(open_batches(there / "blocks", **options))


def by_steps(there: Path, **options: Any) -> Any:
    return rows_of(DataLoader(open_steps(there / "blocks", **options), batch_size=None))


def by_mixture(there: Path, **options: Any) -> Any:
    found = rows_of(open_halves(there / "blocks", **options))
    assert found == rows_of(MixtureDataset(**halves(there / "blocks"), **options))
    return found


def by_padded(there: Path, **options: Any) -> Any:
    padded = PaddedBatches(Documents(there / "texts", STREAM), batch_size=2, **options)
    through = [batch.indices.tolist() for batch in padded.loader()]
    assert [batch.indices.tolist() for batch in padded] == through
    return through


READERS: dict[str, Callable[..., Any]] = {
    "Batches": by_batches,
    "StepDataset": by_steps,
    "Mixture": by_mixture,
    "PaddedBatches": by_padded,
}


def set_ranks(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


@pytest.mark.parametrize("reader", READERS)
def test_torchrun_says_which_rank_a_process_is_and_its_process_group_knows_better(
    there: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """The group is what gradients are averaged over."""
    read = READERS[reader]
    set_ranks(monkeypatch, 1, 2)
    found = read(there)
    assert found == read(there, rank=1, world_size=2)
    assert found != read(there, rank=0, world_size=2)
    whole = read(there, rank=0, world_size=1)
    with process_group(2, 3):
        of_group = read(there)
        assert read(there, rank=0, world_size=1) == whole != of_group
    assert of_group == read(there, rank=2, world_size=3)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert read(there) == whole != found


@pytest.mark.slow
@pytest.mark.parametrize("opened_before", [False, True])
@pytest.mark.parametrize(("workers", "start"), [(2, "fork"), (0, None), (2, "spawn")])
@pytest.mark.cases(2)
def test_workers_read_for_the_rank_that_is_known_when_they_start(
    there: Path, workers: int, start: str | None, *, opened_before: bool
) -> None:
    """They have no process group, or the copy of one; the data set may have been opened before there was one."""
    steps = open_steps(there / "blocks") if opened_before else None
    with process_group(1, 2):
        steps = steps or open_steps(there / "blocks")
        found = rows_of(DataLoader(steps, batch_size=None, num_workers=workers, multiprocessing_context=start))
    assert found == by_batches(there, rank=1, world_size=2)


def test_a_state_of_one_world_goes_on_in_another(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_batches(there)
    state = open_batches(there / "blocks").skip(3).state_dict()
    ranks = []
    for rank in range(2):
        set_ranks(monkeypatch, rank, 2)
        ranks.append(open_batches(there / "blocks", state=state))
    rows = together(ranks)
    assert rows == whole[6 : 6 + len(rows)]
    assert len(rows) > len(whole) - 6 - 4


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "1"}, r"RANK=1, which does not say"),
        ({"WORLD_SIZE": "2"}, r"WORLD_SIZE=2, which does not say .* when the process group is initialised"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK=2, WORLD_SIZE=2, which"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, r"RANK=one"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, r"SLURM started this process as number 3 of 8"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, r"give rank and world_size"),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, r"MVAPICH started this process as number 1 of 2"),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}, r"jsrun started this process as number 1 of 2"),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, r"Flux started this process as number 1 of 2"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.cases(12)
def test_an_environment_that_leaves_it_open_is_refused(
    there: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str, reader: str
) -> None:
    """A guess would be the same samples on all ranks, or a part of them on the only one."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=said):
        READERS[reader](there)
    assert READERS[reader](there, rank=0, world_size=1)


def test_the_only_task_of_slurm_is_alone(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert by_batches(there) == by_batches(there, rank=0, world_size=1)


@pytest.mark.parametrize("reader", READERS)
def test_half_a_rank_is_refused(there: Path, reader: str) -> None:
    read = READERS[reader]
    with pytest.raises(InputError, match="rank is 0, without world_size: give both"):
        read(there, rank=0)
    with process_group(1, 2), pytest.raises(InputError, match="world_size is 4, without rank: give both"):
        read(there, world_size=4)


def test_the_number_of_ranks_alone_is_taken_with_a_warning(there: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert by_batches(there, world_size=2) == by_batches(there, rank=0, world_size=2)
    assert "world_size is 2 without a rank, so this reads as rank 0" in caplog.text


def test_who_opened_too_early_is_told(there: Path) -> None:
    batches, given = open_batches(there / "blocks"), open_batches(there / "blocks", rank=0, world_size=1)
    padded = PaddedBatches(Documents(there / "texts", STREAM), batch_size=2)
    with process_group(0, 2):
        for loop in (batches, padded, padded.loader(), padded.loader(num_workers=1)):
            with pytest.raises(InputError, match="the process group has 2 ranks, and was initialised after"):
                next(iter(loop))
        assert next(iter(given))
    with process_group(0, 1):
        assert next(iter(batches))


@pytest.mark.parametrize("kind", [EraSampler, BucketSampler, StratifiedSampler])
def test_ranks_share_a_sampler_that_stands_alone(there: Path, kind: Any) -> None:
    documents = Documents(there / "texts", STREAM)
    options: dict[str, Any] = {"num_samples": 20, "num_strata": 2} if kind is StratifiedSampler else {}
    whole = list(kind(documents, **options))
    ranks = [kind(documents, rank=rank, world_size=3, **options) for rank in range(3)]
    found = [list(one) for one in ranks]
    assert [number for step in zip(*found, strict=True) for number in step] == whole[: len(whole) // 3 * 3]
    assert {len(one) for one in ranks} == {len(found[0])}
    assert ranks[0].state_dict() == ranks[1].state_dict()
    with pytest.raises(InputError, match="one rank among several"):
        PaddedBatches(documents, ranks[0], batch_size=2)


def test_a_sampler_among_ranks_must_know_its_own(there: Path) -> None:
    """Some frameworks divide its batches, others do not."""
    documents = Documents(there / "texts", STREAM)
    sampler = EraSampler(documents)
    told = r"rank 1 of 2, and this sampler has no rank: .* 0 and 1 where a framework"
    with process_group(1, 2):
        with pytest.raises(InputError, match=told):
            next(iter(sampler))
        assert list(EraSampler(documents, rank=0, world_size=1))
        assert next(iter(PaddedBatches(documents, sampler, batch_size=2)))
    assert list(sampler)


SCRIPT = """
import sys
from torch import distributed
from tests.consumers.test_data_rank import by_batches
from pathlib import Path
distributed.init_process_group("gloo")
Path(sys.argv[2], f"rank{distributed.get_rank()}").write_text(repr(by_batches(Path(sys.argv[1]))))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_the_loop_of_the_readme_under_torchrun(there: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2"]  # on a busy machine gloo's connections between the processes may fail
    root = Path(__file__).parents[2]
    ran = [*command, str(tmp_path / "script.py"), str(there), str(tmp_path)]
    done = subprocess.run(ran, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert found == [repr(by_batches(there, rank=rank, world_size=2)) for rank in range(2)]
