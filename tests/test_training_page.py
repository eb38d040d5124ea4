"""What docs/training.md says, held against what the code does."""

import doctest
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.segments.chains import STREAM, fill, make_chain, make_info, make_store
from tests.segments.eras import make_eras, write_eras
from tokenmill.consumers import Batches
from tokenmill.eras import Permutation
from tokenmill.segments import Store, StreamInfo

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
MESH = (2, 4, 2)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """Run the page's session; each of its lines must print what stands there. Return its variables."""
    test = doctest.DocTestParser().get_doctest(PAGE, {}, "training.md", None, 0)
    assert len(test.examples) > 20
    lines: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=lines.append, clear_globs=False)
    assert not failed, "".join(lines)
    return test.globs


def store_of(path: Path, info: StreamInfo, ranges: list[list[tuple[int, int]]]) -> Store:
    """Make a store with eras of these ranges, and the end marker."""
    stops = [{partition: stop for partition, (_, stop) in enumerate(era)} for era in ranges]
    store = make_store(path, info)
    chains = {partition: make_chain(info, stop, partition=partition) for partition, stop in stops[-1].items()}
    for partition, stop in stops[-1].items():
        fill(store, info, chains[partition], [stop], partition=partition)
    write_eras(store, make_eras(info, chains, stops, end=True), stream=info.name)
    return store


def test_the_example_leads_to_the_bytes_that_a_rank_gets(example: dict[str, Any], tmp_path: Path) -> None:
    """The third row of rank 1 of 4, in the step after the state, is what stands in that file at that place."""
    info = make_info(block_tokens=1025, segment_blocks=4096)
    store = store_of(tmp_path, info, example["ranges"])
    batches = Batches(store.path, STREAM, batch_size=4, sequence_length=512, seed=1, rank=1, world_size=4)
    batches.load_state_dict(example["state"])
    batch = next(iter(batches))

    place = tuple(int(column[2]) for column in batch.samples)
    assert place == (example["partition"], example["block"], example["view"])
    file = tmp_path / f"raw-text.train/{example['partition']}/{example['segment']:012d}.bin"
    tokens = np.frombuffer(file.read_bytes()[example["start"] :][: 513 * 2], info.dtype).tolist()
    assert [*batch.x[2].tolist(), int(batch.y[2, -1])] == tokens
    assert {source.block for source in batch.sources()[2]} <= {5668}

    state = batches.state_dict()
    assert f'`"sample": {state["sample"]}` and `"ranges": {state["ranges"]}`' in PAGE
    assert batch.step == 625


@given(st.integers(1, 3000), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9), st.integers(0, 1 << 40))
def test_the_order_on_the_page_is_ours(example: dict[str, Any], size: int, seed: int, passed: int, era: int) -> None:
    """For eras of any size, at any place."""
    places = np.unique(np.array([0, size // 3, size // 2, size - 1]))
    ours = Permutation(size, seed=seed, passed=passed, era=era)(places).tolist()
    assert [example["permuted"](place, size, seed, passed, era) for place in places.tolist()] == ours


class Mesh:
    """A device mesh, as seen by the process with this coordinate in its data dimension."""

    def __init__(self, coordinate: int) -> None:
        """Stand there."""
        self.coordinate = coordinate

    def __call__(self, device: str, shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...]) -> "Mesh":
        """Be made."""
        assert (device, shape[mesh_dim_names.index("data")]) == ("cuda", 4)
        return self

    def __getitem__(self, name: str) -> "Mesh":
        assert name == "data"
        return self

    def get_local_rank(self) -> int:
        """Return the coordinate."""
        return self.coordinate

    def size(self) -> int:
        """Return how many there are."""
        return 4


def test_the_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, one piece after the other; the data ranks of the mesh get a step's samples, each its own."""
    values = make_info(block_tokens=65).values
    for stream in (STREAM, "raw-text.validation"):
        info = StreamInfo.from_values({**values, "stream": stream})
        store_of(tmp_path / "store", info, [[(n, n + 1), (2 * n, 2 * n + 2)] for n in range(8)])
    monkeypatch.chdir(tmp_path)
    steps = []
    for rank in range(4):
        model = torch.nn.Linear(1, 1)
        names: dict[str, Any] = {"Batches": Batches, "init_device_mesh": Mesh(rank), "evaluate": lambda batch: batch.y}
        names |= {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
        for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(snippet, names)  # noqa: S102 - code of our own page
        steps.append([row for batch in islice(names["batches"], 1) for row in batch.x.tolist()])
        assert json.loads(json.dumps(names["checkpoint"]["data"])) == names["checkpoint"]["data"]
        assert len(names["losses"]) == 6
        assert len(names["samples"]) == 3
        assert rank or len(list(names["loader"])) == 6
        assert names["windows"][0, 7].x.shape == (64,)
    whole = Batches("store", STREAM, batch_size=16, sequence_length=64)
    assert [row for step in steps for row in step] == next(iter(whole)).x.tolist()
