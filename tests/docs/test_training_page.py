"""What docs/training.md says, held against what the code does."""

import doctest
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.consumers.mixtures import alone, open_mixture, rows_of, stores_of
from tests.consumers.packed import given_documents, pack, packed_info, packed_store
from tests.store.chains import STREAM, fill, make_chain, make_eras, make_info, make_store, write_eras
from tokenmill.consumers import Batches
from tokenmill.eras import Permutation
from tokenmill.errors import InputError, StoreError
from tokenmill.samples.mixing import Course, Point, Schedule
from tokenmill.store import Store, StreamInfo

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def session(text: str, least: int) -> dict[str, Any]:
    """Run a session; each of its lines must print what stands there. Return its variables."""
    test = doctest.DocTestParser().get_doctest(text, {}, "training.md", None, 0)
    lines: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=lines.append, clear_globs=False)
    assert not failed, "".join(lines)
    assert tried > least
    return test.globs


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return session(PAGE, 20)


@pytest.fixture(scope="module")
def page() -> SimpleNamespace:
    """Return the functions of the section on mixtures, which needs no other."""
    return SimpleNamespace(**session(PAGE.partition("## Mixtures\n")[2].partition("\n## ")[0], 8))


def rows_in(batches: Batches) -> list[list[int]]:
    return [row for batch in batches for row in batch.x.tolist()]


def store_of(path: Path, info: StreamInfo, ranges: list[list[tuple[int, int]]], *, end: bool = True) -> Store:
    stops = [{partition: stop for partition, (_, stop) in enumerate(era)} for era in ranges]
    store = make_store(path, info)
    chains = {partition: make_chain(info, stop, partition=partition) for partition, stop in stops[-1].items()}
    for partition, stop in stops[-1].items():
        fill(store, info, chains[partition], [stop], partition=partition)
    write_eras(store, make_eras(info, chains, stops, end=end), stream=info.name)
    return store


def test_the_example_leads_to_the_bytes_that_a_rank_gets(example: dict[str, Any], tmp_path: Path) -> None:
    info = make_info(block_tokens=1025, segment_blocks=4096)
    store = store_of(tmp_path, info, example["ranges"])
    batches = Batches(store.path, STREAM, batch_size=4, sequence_length=512, seed=1, rank=1, world_size=4)
    assert example["agrees"](example["state"], (tmp_path / STREAM / "eras.jsonl").read_bytes().splitlines())
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
    assert state["content"] == example["state"]["content"]


@given(st.integers(1, 3000), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9), st.integers(0, 1 << 40))
def test_the_order_on_the_page_is_ours(example: dict[str, Any], size: int, seed: int, passed: int, era: int) -> None:
    places = np.unique(np.array([0, size // 3, size // 2, size - 1]))
    ours = Permutation(size, seed=seed, passed=passed, era=era)(places).tolist()
    assert [example["permuted"](place, size, seed, passed, era) for place in places.tolist()] == ours


@contextmanager
def process_of_a_mesh(rank: int) -> Iterator[Callable[..., DeviceMesh]]:
    """Be one of 16 processes, of which the others are not there; yield what makes a mesh of them, on the CPU."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=16)
    try:
        yield lambda device, shape, **names: init_device_mesh(device.replace("cuda", "cpu"), shape, **names)
    finally:
        distributed.destroy_process_group()


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def store_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    values = make_info(block_tokens=65).values
    for stream in (STREAM, "raw-text.validation"):
        info = StreamInfo.from_values({**values, "stream": stream})
        store_of(directory / "store", info, [[(n, n + 1), (2 * n, 2 * n + 2)] for n in range(8)])
    for stream, packing, size in (("reviews.train", "concat", 65), ("books.train", "chunks", 13)):
        documents = given_documents([40, 30, 75] * 8, labels=["negative", "positive", "positive"])
        info = packed_info(packing, block_tokens=size, stream=stream)
        packed_store(directory / "store", info, {0: pack(documents, packing, size)})
    return directory


@pytest.fixture(autouse=True)
def there(store_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store_directory)


@pytest.mark.slow
def test_the_code_on_the_page_runs() -> None:
    model = torch.nn.Linear(1, 1)
    names: dict[str, Any] = {"Batches": Batches, "evaluate": lambda batch: batch.y}
    names |= {"torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters())}
    for snippet in snippets():
        meshed = "init_device_mesh" in snippet
        with process_of_a_mesh(0) if meshed else nullcontext() as names["init_device_mesh"]:
            exec(snippet, names)  # noqa: S102 - code of our own page
    assert json.loads(json.dumps(names["checkpoint"]["data"])) == names["checkpoint"]["data"]
    assert len(names["losses"]) == 6
    batch = next(iter(Batches("store", STREAM, batch_size=2, sequence_length=64, eras=range(1))))
    logits = torch.nn.functional.one_hot(batch.x, 1 << 16).float()
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten())
    assert names["loss_of"](logits, batch) == pytest.approx(float(mean))
    assert len(names["samples"]) == 3
    assert len(list(names["loader"])) == 6
    assert names["windows"][0, 7].x.shape == (64,)
    assert (len(names["documents"]), len(names["some"]), len(names["longest"].tokens)) == (24, 3, 75)
    assert json.dumps(names["counts"]) in PAGE
    assert names["saved"]["sample"] == 48
    assert len(names["rows"]) == 2
    assert all(row == list(range(row[0], row[0] + 12)) for row in names["rows"])
    assert (names["passed"], names["place"]) == (1, 8)


def page_batches(**options: Any) -> Batches:
    return Batches("store", STREAM, **({"batch_size": 4, "sequence_length": 64} | options))


@pytest.mark.parametrize(
    ("loop", "steps"), [("zip(batches, range(3))", 4), ("zip(range(3), batches)", 3), ("islice(batches, 3)", 3)]
)
def test_loops_of_some_steps_take_as_many_as_the_page_says(loop: str, steps: int) -> None:
    batches = page_batches()
    assert f"`{loop}`" in PAGE or loop == "islice(batches, 3)"
    assert len(list(eval(loop, {"batches": batches, "islice": islice}))) == 3  # noqa: S307 - code of our own page
    assert batches.step == steps
    assert batches.state_dict()["sample"] == 4 * steps


def test_samples_count_from_the_first_era_that_is_named() -> None:
    whole = rows_in(page_batches(batch_size=1))
    assert len(whole) == 24
    for first, stop in [(0, 8), (2, 6), (7, 8)]:
        assert rows_in(page_batches(batch_size=1, eras=range(first, stop))) == whole[3 * first : 3 * stop]


def test_samples_count_through_passes() -> None:
    options: dict[str, Any] = {"eras": range(2, 6), "passes": 3}
    rows = rows_in(page_batches(batch_size=1, **options))
    passes = [rows[start : start + 12] for start in range(0, 36, 12)]
    assert len(rows) == 36
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert passes[0] == rows_in(page_batches(batch_size=1, eras=range(2, 6)))
    assert len({str(one) for one in passes}) == 3
    assert rows_in(page_batches(batch_size=5, **options)) == rows[:35]


@pytest.mark.parametrize(
    ("saved", "opened", "taken"),
    [
        ({"passes": 2}, {"passes": 3}, True),
        ({"eras": range(2, 4)}, {"eras": range(2, 6)}, True),
        ({"eras": range(2, 4), "passes": 2}, {"eras": range(2, 6), "passes": 2}, False),
        ({"eras": range(2, 4)}, {"eras": range(1, 4)}, False),
    ],
)
def test_states_are_taken_where_the_page_says(saved: dict[str, Any], opened: dict[str, Any], *, taken: bool) -> None:
    batches = page_batches(**opened)
    with nullcontext() if taken else pytest.raises(InputError, match="another sequence"):
        batches.load_state_dict(page_batches(**saved).skip(1).state_dict())
    assert batches.step == taken


def test_a_second_pass_waits_for_the_end_marker(tmp_path: Path) -> None:
    """Without it, nobody knows where the first one ends."""
    info = make_info(block_tokens=65)
    store = store_of(tmp_path, info, [[(0, 3), (0, 2)]], end=False)
    batches = Batches(store.path, STREAM, batch_size=1, sequence_length=64, passes=2, timeout=0)
    with pytest.raises(StoreError, match=r"waiting for era 1 .* close the stream"):
        list(batches)
    assert batches.step == 5


@pytest.mark.slow
def test_groups_of_a_mesh_share_samples() -> None:
    """What tensor and pipeline parallelism divide is the model: only data ranks get different samples, together all."""
    (snippet,) = (code for code in snippets() if "init_device_mesh" in code)
    found: dict[int, list[list[list[int]]]] = {}
    for rank in range(16):
        names: dict[str, Any] = {"Batches": Batches}
        with process_of_a_mesh(rank) as names["init_device_mesh"]:
            exec(snippet, names)  # noqa: S102 - code of our own page
            found.setdefault(names["rank"], []).append(next(iter(names["batches"])).x.tolist())
    assert all(len(group) == 4 and group.count(group[0]) == 4 for group in found.values())
    whole = next(iter(Batches("store", STREAM, batch_size=16, sequence_length=64)))
    assert [row for rank in range(4) for row in found[rank][0]] == whole.x.tolist()


@pytest.mark.parametrize("widen", [True, False])
def test_what_is_changed_in_x_leaves_y_alone_where_the_page_says(*, widen: bool) -> None:
    """Int64 tensors have memory of their own; views of one tensor as stored share it."""
    x, y = next(iter(page_batches(batch_size=2, widen=widen)))
    before = y.clone()
    x[:, 1:] = 7
    assert torch.equal(y, before) == widen


BY_POINTS = [(0, {"web": 3}), (20, {"web": 1, "code": "1/2"}), (62, {"books": 1, "code": 1, "web": 0.5})]
LEAVE = [(0, {"web": "7/10", "code": "2/10", "books": "3/10"}), (40, {"web": 1, "code": 2, "books": "1/9"})]


@pytest.mark.parametrize(
    ("eras", "points", "options", "least"),
    [
        ((3, 6, 12), [(0, {"web": "7/10", "code": "2/10", "books": "1/10"}), (50, {"web": 1, "code": 2})], {}, 81),
        ((3, 6, 12), BY_POINTS, {"linear": True}, 71),
        ((3, 6, 12), BY_POINTS, {"linear": True, "unit": "step"}, 71),
        ((2, 3, 9), LEAVE, {"at_end": "leave"}, None),
        ((2, 3, 9), LEAVE, {"linear": True, "at_end": "leave"}, None),
    ],
    ids=["a change", "steadily", "steadily, by step", "streams leave", "streams leave, steadily"],
)
def test_a_mixture_gives_what_the_page_says(
    page: SimpleNamespace, tmp_path: Path, *, eras: tuple[int, ...], points: Any, options: Any, least: int | None
) -> None:
    stores = stores_of(tmp_path, dict(zip(("books", "code", "web"), eras, strict=True)))
    own = {name: [*rows] for name, rows in alone(stores).items()}
    has = {} if least else {name: len(rows) for name, rows in own.items()}
    said = [(start // 2, weights) for start, weights in points] if "unit" in options else points
    rows = rows_of(open_mixture(stores, said, options, **({} if least else {"batch_size": 1})))
    names = page.mixed(page.steadily(points) if "linear" in options else points, sum(has.values()) or len(rows), has)
    assert rows == [(name, own[name][names[:at].count(name)]) for at, name in enumerate(names)]
    assert len(rows) >= least if least else len(rows) == sum(has.values())


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_parts_of_a_steady_change_are_those_of_the_page(page: SimpleNamespace, first: int, second: int) -> None:
    points = [
        (0, {"a": Fraction(3)}),
        (first, {"a": Fraction(1), "b": Fraction(2, 3)}),
        (first + second, {"b": Fraction(1)}),
    ]
    pieces = Schedule(tuple(Point(*point) for point in points), linear=True).plan.pieces
    assert [(start, dict(zip("ab", weights, strict=True))) for start, weights in pieces] == [
        (start, {name: weights.get(name, 0) / sum(weights.values()) for name in "ab"})
        for start, weights in page.steadily(points)
    ]


schedules = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.dictionaries(st.sampled_from("abcde"), st.fractions(Fraction(1, 12), 9, max_denominator=12), min_size=1),
    ),
    min_size=1,
    max_size=4,
)


@given(
    schedules,
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from(["linear", "at once"]),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 30)),
)
def test_the_rule_on_the_page_is_ours(
    page: SimpleNamespace, parts: Any, strides: list[int], change: str, has: dict[str, int]
) -> None:
    starts = np.cumsum([0, *(length for length, _ in parts)])[:-1].tolist()
    points = [(start, weights) for start, (_, weights) in zip(starts, parts, strict=True)]
    schedule = Schedule(tuple(Point(start, weights) for start, weights in points), linear=change == "linear")
    course = Course(schedule, 0, [0] * len(schedule.names), lambda name, _: has.get(name))
    found: list[str] = []
    for stride in strides:
        streams, numbers = course.draw(np.arange(course.place, course.place + stride), course.place + stride)
        for stream, number in zip(streams.tolist(), numbers.tolist(), strict=True):
            assert number == found.count(schedule.names[stream])
            found.append(schedule.names[stream])
        if not has:
            wanted = schedule.plan.wanted(course.place)
            assert all(abs(taken - part) < 1 for taken, part in zip(course.taken, wanted, strict=True))
    assert found == page.mixed(page.steadily(points) if change == "linear" else points, sum(strides), has)
    if not has:
        assert Course(schedule, 0, [0] * len(schedule.names)).go_to(course.place).taken == course.taken
