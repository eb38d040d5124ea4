"""What a mirror, and `retire --keep-from`, keep of a store: whatever a run needs that goes on from a state."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.app.commands import Told, invoke
from tests.consumers.scenes import CHAINS, ERAS, era_store, open_batches, other_chains, other_eras
from tests.store.chains import STREAM, fill, make_info
from tokenmill.app.segments import mirror as keeping
from tokenmill.app.segments.mirror import CheckpointKeeper
from tokenmill.errors import InputError
from tokenmill.store import Store, open_partition
from tokenmill.store.store import StreamInfo


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with five eras, sealed far beyond these."""
    store = era_store(tmp_path / "store")
    for partition, stop in ((0, 40), (1, 32), (2, 24)):
        fill(store, make_info(), CHAINS[partition], [stop], partition=partition)
    return store


def state(store: Store, file: Path, steps: int, **changes: Any) -> Path:
    file.write_text(json.dumps(open_batches(store).skip(steps).state_dict() | changes))
    return file


def firsts(store: Store, stream: str = STREAM) -> list[int]:
    return [open_partition(store.path, stream, number).first_block for number in range(3)]


def needed(store: Store, samples: int) -> list[int]:
    """Return with which block partitions begin, of whose era the sample is, as the eras of `scenes` have them."""
    passed, found = 0, ERAS[0]
    for era in ERAS[:-1]:
        if samples < passed + era.blocks:
            found = era
            break
        passed += era.blocks
    ranges = [part.first for part in found.ranges] + [0] * 3
    return [first - first % 4 for first in ranges[:3]]


@pytest.mark.parametrize("steps", [0, 3, 6, 8, 12, 15, 19])
def test_what_lies_before_the_era_of_the_next_sample_goes(store: Store, tmp_path: Path, steps: int) -> None:
    keeper = CheckpointKeeper(store.path, [state(store, tmp_path / "state.json", steps)])
    with capture_logs() as logs:
        keeper.look()
        assert firsts(store) == needed(store, 2 * steps)
        keeper.look()
    retired = [entry for entry in logs if entry["event"] == "segments retired"]
    assert sum(entry["segments"] for entry in retired) == sum(firsts(store)) // 4
    assert {(entry["partition"], entry["first"]) for entry in retired} == {
        (number, first) for number, first in enumerate(firsts(store)) if first
    }


def test_what_any_of_the_states_needs_stays(store: Store, tmp_path: Path) -> None:
    late, early = state(store, tmp_path / "late.json", 19), state(store, tmp_path / "early.json", 6)
    for files in ([late, early], [early, late]):
        CheckpointKeeper(store.path, files).look()
        assert firsts(store) == needed(store, 12)
    CheckpointKeeper(store.path, [late]).look()
    assert firsts(store) == needed(store, 38)
    assert firsts(store) != needed(store, 12)


def test_while_a_file_is_missing_nothing_is_retired(store: Store, tmp_path: Path) -> None:
    """A run that is about to write its first state may need everything; it is said once, and which file.

    The command refuses to go on without it.
    """
    late, missing = state(store, tmp_path / "late.json", 19), tmp_path / "missing.json"
    for files in ([late, missing], [missing, late], [missing]):
        keeper = CheckpointKeeper(store.path, files)
        with capture_logs() as logs:
            keeper.look()
            keeper.look()
        assert [(entry["event"], entry["reason"]) for entry in logs] == [
            ("nothing is retired", f"{missing}: not there yet")
        ]
        told = retire(store, *(part for file in files for part in ("--keep-from", file)))
        assert told.code == InputError.exit_code
        assert f"{missing} cannot be read as a state" in told.err
        assert firsts(store) == [0, 0, 0]
    state(store, missing, 6)
    CheckpointKeeper(store.path, [late, missing]).look()
    assert firsts(store) == needed(store, 12)


def test_what_is_missing_again_is_said_again(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    keeper = CheckpointKeeper(store.path, [file])
    with capture_logs() as logs:
        keeper.look()
        state(store, file, 0)
        keeper.look()
        file.unlink()
        keeper.look()
    assert [entry["event"] for entry in logs] == ["nothing is retired"] * 2


def test_an_old_state_is_obeyed_with_a_warning(store: Store, tmp_path: Path) -> None:
    file = state(store, tmp_path / "state.json", 6, content=None)
    keeper = CheckpointKeeper(store.path, [file])
    with capture_logs() as logs:
        keeper.look()
        state(store, file, 8, content=None)
        keeper.look()
    assert [entry["event"] for entry in logs].count("state without content") == 1
    assert firsts(store) == needed(store, 16)


def test_streams_of_which_no_state_speaks_are_kept(store: Store, tmp_path: Path) -> None:
    info = make_info()
    other = StreamInfo.from_values({**info.values, "stream": "other"})
    store.add_stream(other, None)
    for partition in range(3):
        source = store.path / STREAM / str(partition)
        target = store.path / "other" / str(partition)
        target.mkdir()
        for file in source.glob("0*"):
            (target / file.name).write_bytes(file.read_bytes())
    before = [sorted(path.name for path in (store.path / "other" / str(n)).iterdir()) for n in range(3)]
    CheckpointKeeper(store.path, [state(store, tmp_path / "state.json", 19)]).look()
    assert max(firsts(store)) > 0
    assert [sorted(path.name for path in (store.path / "other" / str(n)).iterdir()) for n in range(3)] == before


def test_a_partition_that_no_era_has_met_is_kept(store: Store, tmp_path: Path) -> None:
    file = state(store, tmp_path / "state.json", 4)  # in the era before partition 2 came
    CheckpointKeeper(store.path, [file]).look()
    retire(store, "--keep-from", str(file))
    assert firsts(store) == needed(store, 8)
    assert firsts(store)[2] == 0
    assert open_partition(store.path, STREAM, 2).blocks == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stream": "other"}, "'other', which is not in .*raw-text.train"),
        ({"fingerprint": "00" * 16}, "fingerprint 0000"),
    ],
)
def test_a_state_of_something_else_is_refused(
    store: Store, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    files = [state(store, tmp_path / "state.json", 19), state(store, tmp_path / "other.json", 19, **changes)]
    with pytest.raises(InputError, match=message):
        CheckpointKeeper(store.path, files).look()
    assert firsts(store) == [0, 0, 0] or "stream" in changes


async def test_a_mirror_looks_again_and_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEP_LOOK_SECONDS", 0.001)
    file = state(store, tmp_path / "state.json", 0)
    keeper = CheckpointKeeper(store.path, [file])
    looks = 0
    real = keeper.look

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            file.write_text("no state")
        if looks == 6:
            state(store, file, 19)
        real()

    monkeypatch.setattr(keeper, "look", look)
    with capture_logs() as logs:
        running = asyncio.create_task(keeper.run())
        async with asyncio.timeout(20):
            while looks < 8:
                assert not running.done()
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait({running})
    assert [entry["event"] for entry in logs if entry["event"] == "nothing is retired"] == ["nothing is retired"]
    assert firsts(store) == needed(store, 38)


def retire(store: Store, *arguments: object) -> Told:
    return invoke("retire", STREAM, "--store", store.path, *arguments)


def test_retire_keeps_what_any_limit_keeps(store: Store, tmp_path: Path) -> None:
    late, early = state(store, tmp_path / "late.json", 19), state(store, tmp_path / "early.json", 6)
    assert retire(store, "--keep-from", late, "--keep-from", early).code == 0
    assert firsts(store) == needed(store, 12)
    assert retire(store, "--keep-from", late, "--below", "12").code == 0
    assert firsts(store) == [min(12, first) for first in needed(store, 38)]
    assert retire(store, "--keep-from", late, "--keep", "24").code == 0
    assert firsts(store)[0] == min(16, needed(store, 38)[0])


@pytest.mark.parametrize("kept", [0, 3])
def test_a_state_over_other_content_frees_nothing(store: Store, tmp_path: Path, kept: int) -> None:
    other = era_store(tmp_path / "other", other_eras(kept), other_chains(kept))
    file = state(other, tmp_path / "state.json", 19)
    with pytest.raises(InputError, match=r"state: era 4 hash \w+; store: era 4 hash"):
        CheckpointKeeper(store.path, [file]).look()
    told = retire(store, "--keep-from", file)
    assert told.code == InputError.exit_code
    assert "state: era 4 hash" in told.err
    assert firsts(store) == [0, 0, 0]


def test_retire_obeys_an_old_state_with_a_warning(store: Store, tmp_path: Path) -> None:
    told = retire(store, "--keep-from", state(store, tmp_path / "state.json", 19, content=None))
    assert not told.code
    assert "does not say over which content" in told.err
    assert firsts(store) == needed(store, 38)
