"""``tokenmill trace`` with a state over other content than the store's; no broker is asked."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.consumers.scenes import ERAS, era_store, open_batches, other_chains, other_eras
from tokenmill.errors import InputError
from tokenmill.store import Store


@pytest.fixture
def state(tmp_path: Path) -> dict[str, Any]:
    """Return the state of a run that made 7 steps of 2 samples, the last in era 2."""
    batches = open_batches(era_store(tmp_path / "store"))
    list(islice(batches, 7))
    return batches.state_dict()


def trace(store: Store, state: dict[str, Any], directory: Path) -> tuple[int, str]:
    file = directory / "state.json"
    file.write_text(json.dumps(state))
    code, out, err = invoke("trace", "--store", store.path, "--state", file, "--step", "1")
    assert out.startswith("step 1 of raw-text.train: samples 2 to 3") is (code == 0)
    return code, err


def test_documents_of_another_cluster_are_not_named(state: dict[str, Any], tmp_path: Path) -> None:
    for kept in (0, 2):
        other = era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept))
        code, said = trace(other, state, tmp_path)
        assert code == InputError.exit_code
        assert f"(state: era 2 hash {ERAS[2].hash.hex()}; store: era 2 hash {other_eras(kept)[2].hash.hex()})" in said
        assert str(other.path) in said
        assert "give the store that the run read, or a copy of it" in said
    same = era_store(tmp_path / "3", other_eras(3), other_chains(3))
    assert trace(same, state, tmp_path) == (0, "")


def test_what_cannot_be_compared_is_traced_with_a_warning(state: dict[str, Any], tmp_path: Path) -> None:
    behind = era_store(tmp_path / "behind", ERAS[:2])
    code, said = trace(behind, state, tmp_path)
    assert code == 0
    assert f"warning: the state was saved after era 2 hash {ERAS[2].hash.hex()}, which is not in" in said
    del state["content"]
    code, said = trace(era_store(tmp_path / "whole"), state, tmp_path)
    assert code == 0
    assert "warning: a state does not say over which content it was saved" in said
