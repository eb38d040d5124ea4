"""Every argument of what a trainer calls: each odd value works, or is refused by name, with what to give instead."""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

import tokenmill.consumers as public
from tests.consumers.packed import text_store
from tests.consumers.scenes import era_store
from tests.store.chains import STREAM
from tokenmill.consumers import (
    BatchDocuments,
    Batches,
    BucketSampler,
    Documents,
    EraDataset,
    EraSampler,
    Metrics,
    Mixture,
    MixtureDataset,
    PaddedBatches,
    StepDataset,
    StratifiedSampler,
    Windows,
    prometheus,
)
from tokenmill.consumers.arguments import shown
from tokenmill.errors import InputError, StoreError, TokenMillError


class Values(NamedTuple):
    work: tuple[Any, ...]
    refused: tuple[Any, ...]
    either: tuple[Any, ...] = ()
    """Values that work or are refused, whichever: none ends in an error of Python's."""


class Row(NamedTuple):
    call: Callable[[Any], object]
    values: Values
    name: str
    """As a message says it."""


NO_NUMBERS: Final[tuple[Any, ...]] = (
    None, "4", b"4", "", [4], (4,), {4}, {}, range(4), object, 1j, np.array([4, 5]), torch.tensor([4, 5])
)  # fmt: skip
NO_WHOLES: Final = (*NO_NUMBERS, True, np.True_, 1.5, 4.0, math.nan, math.inf, np.float32(4), Decimal(4), Fraction(4))
HUGE: Final = (1 << 31, 1 << 62, 1 << 63, 1 << 200, 10**5000)


def wholes(least: int, *right: int) -> Values:
    """Return what whole numbers of at least ``least`` are, of which these fit."""
    kinds = (int, np.int32, np.uint8, np.array, torch.tensor)
    below = (least - 1, np.int64(least - 1), -(1 << 200))
    return Values(tuple(kind(one) for one in right for kind in kinds), (*NO_WHOLES, *below), HUGE)


def optional(least: int, *right: int) -> Values:
    values = wholes(least, least, *right)
    return values._replace(refused=tuple(value for value in values.refused if value is not None))


PATH: Final = Values((), (None, 4, "", b"", "st\0re", ["store"], 1.5, "s3://store"))
NAME: Final = Values((STREAM,), (None, 4, [STREAM], b"raw", "", "..", "a/b", "other", "st\0re", "x" * 300, "ü"))
FLAG: Final = Values((True, False, np.True_), (None, 0, 1, "yes", "", [], 1.0, np.int8(1)))
ERAS: Final = Values(
    (None, range(2), range(1, 4), range(np.int64(1), np.int64(3))),
    (
        (0, 2), [0], 0, 3, "0:2", "", {0}, slice(0, 2), 1.5, True,
        range(0), range(8, 0, -1), range(0, 8, 2), range(-1, 2),
    ),
    (range(1 << 62), range(1 << 70), range(4, 99), range(98, 99)),
)  # fmt: skip
TIME: Final = Values(
    (0, 1, 0.5, np.float32(1), np.int64(1)),
    ("1", b"1", -1, -0.5, math.nan, -math.inf, True, [1.0], 1j, Decimal(1), 10**400, 1 << 200, np.float64("nan"), {}),
    (1e18, 1 << 62, 1e300),
)
STATE: Final = Values((), (*NO_WHOLES, {"sample": 2}, "state", [], [("format", 1)], {"data": None}))
RANKS: Final[Mapping[str, Values]] = {
    "rank": wholes(0, 0)._replace(refused=(*NO_WHOLES[1:], -1, 1), either=(None, *HUGE)),
    "world_size": wholes(1, 1, 2)._replace(refused=(*NO_WHOLES[1:], 0, -1), either=(None, *HUGE)),
}
"""Each beside the other: one alone is refused, or means what it says there."""
CACHED: Final = {
    "cache": Values((None,), (4, "", "cache", b"cache", ["cache"], True, "s3://cache")),
    "cache_bytes": Values((None,), (*NO_WHOLES[1:], 0, 1, -1, 1 << 30)),
}
BATCHES: Final[Mapping[str, Values]] = {
    "store": PATH,
    "stream": NAME,
    **CACHED,
    **RANKS,
    "batch_size": wholes(1, 1, 3),
    "sequence_length": Values((None, 1, np.int32(2), torch.tensor(4)), (*NO_WHOLES[1:], 0, -1, 3, 8), HUGE),
    "seed": Values(
        (0, -1, np.int64(-1), np.uint8(7), (1 << 63) - 1, -(1 << 63), 1 << 63, np.uint64((1 << 64) - 1)),
        (*NO_WHOLES, 1 << 64, -(1 << 63) - 1, 1 << 200),
    ),
    "device": Values(("cpu", torch.device("cpu")), (None, "", "gpu", "cuda:x", [0], 1.5, -7, {}), (0, 1, True)),
    "shuffle": FLAG,
    "in_order": FLAG._replace(work=(False, np.False_), either=(True,)),
    "eras": ERAS,
    "passes": wholes(1, 1, 2)._replace(either=HUGE[2:]),
    "drop_last": FLAG,
    "prefetch": wholes(0, 0, 2)._replace(either=()),
    "read_ahead": wholes(0, 0, 1),
    "mask_loss": FLAG,
    "documents": FLAG,
    "as_dict": FLAG,
    "loss_weight": Values(
        (1, 0.5, 0, np.float32(2), np.int64(3)),
        (None, "1", b"1", True, -1, -0.5, math.nan, math.inf, [1.0], 1j, Decimal(1), 10**400, {}),
        (1e39, 1e300),
    ),
    "widen": FLAG,
    "worker": Values(
        ((0, 1), [0, 2], (np.int64(0), np.uint8(2))),
        (
            None, 0, "01", (0,), (0, 1, 2), (1, 1), ("0", "1"), (0.0, 1), (0, 0), (True, 2), (-1, 2), (0, 1 << 63),
            {0: 2},
        ),
    ),
    "check": FLAG,
    "on_damage": Values(("refuse", "skip"), (None, "ignore", "", True, 0, ["skip"], b"skip")),
    "timeout": TIME._replace(work=(*TIME.work, None, math.inf, float("inf"), np.float32("inf"))),
    "stop": Values((None, lambda: False), (True, 5, "never", [])),
    "poll_seconds": TIME._replace(refused=(*TIME.refused, None, math.inf)),
}  # fmt: skip
LEFT_TO_THE_LOOP: Final = {"device": ("cpu", torch.device("cpu")), "stop": (None,), "worker": ()}
"""Arguments that a `StepDataset` refuses, and what it takes as nothing at all."""
STEPS: Final[Mapping[str, Values]] = {
    **BATCHES,
    **{name: Values(nothing, ("cuda", True, [0], np.arange(2), (1, 2))) for name, nothing in LEFT_TO_THE_LOOP.items()},
}
BY_INDEX: Final = {
    **{name: BATCHES[name] for name in ("store", "stream", "sequence_length", "check", "documents", *CACHED)},
    "eras": ERAS._replace(either=()),
}
WINDOWS: Final = {
    **{name: BATCHES[name] for name in ("store", "stream", "check", *CACHED)},
    "length": Values((None, 1, np.uint8(9)), (*NO_WHOLES[1:], 0, -1), HUGE),
}
WEIGHTS: Final = Values(
    (
        {"a": 1, "b": 2},
        {"a": 0.7, "b": 0.3},
        {"a": "1/3", "b": Decimal("0.25")},
        {"a": Fraction(2, 3), "b": np.float64(0.5)},
        {"a": np.int8(3), "b": 1e-9},
        [(0, {"a": 1, "b": 1}), (5, {"a": 1})],
        ((0, {"b": 1}), [np.int64(7), {"a": 1}]),
    ),
    (
        None, 1, "a=1", {}, [], {"a": 0}, {"a": -1, "b": 1}, {"a": math.nan, "b": 1}, {"a": math.inf}, {"a": "one"},
        {"a": "1/0"}, {"a": True}, {"a": None}, {"a": 1, "c": 1}, {1: 1}, {"a": [1]}, {"a": 1j}, {"a": "1e9"},
        {"a": 10**60}, {"a": Decimal("NaN")},
        [(0, {"a": 1}), (0, {"b": 1})], [(1, {"a": 1})], [(0, {"a": 1}), (9, {"c": 1})],
        [(0, {"a": 1}), (5, {"a": 0})], [{"a": 1}], [(0.0, {"a": 1})], [(0, {"a": 1}), (-5, {"b": 1})],
    ),
)  # fmt: skip
FROM_NOW_ON: Final = Values(WEIGHTS.work[:5], (*WEIGHTS.refused[:20], [(0, {"a": 1})]))
"""Weights that are no schedule."""
MIXED: Final[Mapping[str, Values]] = {
    "weights": WEIGHTS,
    "linear": FLAG,
    "unit": Values((None, "sample", "step"), ("steps", "", 1, True, ["step"])),
    "at_end": Values(("wait", "leave", {"a": "leave"}), (None, "", "repeat", {"c": "wait"}, {"a": "go"}, 1, ["wait"])),
    "interleave": Values(("sample", "batch"), (None, "batches", 1, True)),
    "by": Values(("samples", "tokens"), (None, "sample", 1, True)),
}
NO_STREAMS: Final[tuple[Any, ...]] = (None, 1, "ab", [], {}, {"a": None, "b": 1}, {1: {}}, {"a": [], "b": []})
INDICES: Final = Values(
    ([], [0], [0, 3], (1, 2), range(2), np.arange(2), np.arange(2, dtype=np.uint8), torch.arange(2), [np.int32(1)]),
    (
        None, 4, "01", b"01", [0.5], [True], [None], ["0"], [[0]], [[0], [1, 2]], {0}, {0: 1}, np.array([0.0]),
        [1 << 200], torch.ones(1, 2, dtype=torch.int64),
    ),
)  # fmt: skip
DOCUMENTS: Final[Mapping[str, Values]] = {
    **CACHED,
    "store": PATH,
    "stream": NAME,
    "eras": Values((None, range(2), range(1)), ERAS.refused),
    "label_field": Values((None, "label"), (4, "", b"label", ["label"], True)),
    "label_names": Values(
        (["y"], ("y", 1), ["n", "y"]),
        ("y", b"y", [], ["y", "y"], [1.5], [None], [True], {"y": 0}, 4, range(2), np.arange(2)),
    ),
    "on_missing_label": Values(("drop",), (None, "skip", "", True, 0, ["drop"], b"drop")),
    "check": FLAG,
}
SAMPLERS: Final[Mapping[Callable[..., Any], Mapping[str, Values]]] = {
    EraSampler: {"shuffle": FLAG},
    BucketSampler: {"bucket_size": wholes(1, 1, 3), "window": wholes(1, 64)},
    StratifiedSampler: {"num_samples": wholes(1, 1, 9), "num_strata": wholes(1, 1, 3)},
}
NO_DOCUMENTS: Final = Values((), (*NO_WHOLES[:-1], "documents", Documents))
SAMPLED: Final[Mapping[str, Values]] = {
    "seed": BATCHES["seed"],
    "passes": BATCHES["passes"],
    **RANKS,
    "documents": NO_DOCUMENTS,
}
PADDED: Final[Mapping[str, Values]] = {
    "documents": NO_DOCUMENTS,
    "sampler": Values((None,), (4, "eras", EraSampler, [0])),
    "batch_size": wholes(1, 1, 3),
    "max_length": Values((None, 1, np.int64(64)), (*NO_WHOLES[1:], 0, -1), HUGE),
    "padding": Values(("longest",), (None, "left", "", True, 0, ["longest"], b"longest")),
    "padding_id": Values((None, 0, np.int64(7)), (*NO_WHOLES[1:], -1), HUGE),
    **RANKS,
    "drop_last": FLAG,
    "device": BATCHES["device"],
    "prefetch": BATCHES["prefetch"],
}
PARTITION: Final = wholes(0, 0, 2)._replace(refused=(*NO_WHOLES, -1, 3, 99))
PLACE: Final = Values(
    ((0, 0), (2, np.int32(3)), 0, 7), (*NO_WHOLES[:-3], (0,), (0, 0.5), (0, 1, 2), ("0", 1), (True, 1))
)
INDEX: Final = wholes(0, 0, 3)._replace(refused=NO_WHOLES, either=())
NO_SLICES: Final = (slice(0.5, None), slice(None, "4"), slice(0, 4, 0))
LABEL: Final = Values(("0", 0, np.int64(0), "", 'a "b"\n'), (None, True, 0.5, [0], b"0", {}), HUGE)
PORT: Final = Values((0, np.int32(0)), (*NO_WHOLES, -1, 1 << 16, 1 << 31, 1 << 200))
HOST: Final = Values(
    ("127.0.0.1", "localhost"), (None, 0, b"127.0.0.1", "x" * 300, "203.0.113.1", "a\0b", ["127.0.0.1"])
)
HALVES: Final = {"a": range(2), "b": range(2, 4)}
SAID: Final = {
    "labels": "label rank",
    "name": "stream",
    "state_dict": "state",
    "streams": "stream",
    "weights": "weight",
}
"""How messages call an argument, where not by its name."""


class Scene:
    """What the calls are made on; nothing that they do lasts."""

    def __init__(self, path: Path) -> None:
        self.store = era_store(path / "plain").path
        self.labelled = text_store(path / "labelled", [3, 9, 4] * 4, labels=["y"])
        self.documents = Documents(self.labelled, STREAM, label_field="label", label_names=["y"])

    def open(self, kind: Callable[..., Any], **values: Any) -> Any:
        right: dict[str, Any] = {"store": self.store, "stream": STREAM}
        right |= {"length": 4} if kind is Windows else {"sequence_length": 4}
        right |= {"batch_size": 2} if kind in {Batches, StepDataset} else {}
        return kind(**(right | values))

    def read(self, **values: Any) -> Any:
        batches = self.open(Batches, **({"timeout": 0.0} | values))
        json.dumps(batches.state_dict())
        return next(iter(batches), None)

    def two(self) -> Any:
        return {name: self.open(Batches, timeout=0.0, eras=eras) for name, eras in HALVES.items()}

    def mix(self, **values: Any) -> Mixture:
        mixture = Mixture(**({"streams": self.two(), "weights": {"a": 1, "b": 1}} | values))
        json.dumps(mixture.state_dict())
        next(iter(mixture))
        return mixture

    def mix_opened(self, kind: Callable[..., Any], **values: Any) -> Any:
        shared = {"store": self.store, "stream": STREAM, "batch_size": 2, "sequence_length": 4}
        streams = {name: {"eras": eras} for name, eras in HALVES.items()}
        return kind(**({"streams": streams, "weights": {"a": 1, "b": 1}} | shared | values))

    def find(self, **values: Any) -> None:
        right: dict[str, Any] = {"store": self.labelled, "stream": STREAM}
        if {"label_names", "on_missing_label"} & {*values}:
            right |= {"label_field": "label", "on_missing_label": "drop", "label_names": ["y"]}
        elif values.get("label_field") == "label":
            right |= {"on_missing_label": "drop"}
        found = Documents(**(right | values))
        found.take([0] if len(found) else [])

    def sample(self, kind: Callable[..., Any], **values: Any) -> Any:
        right: dict[str, Any] = {"documents": self.documents}
        right |= {"num_samples": 4, "num_strata": 2} if kind is StratifiedSampler else {}
        sampler = kind(**(right | values))
        next(iter(sampler), None)
        return sampler

    def load(self, kind: Callable[..., Any], state: Any) -> None:
        self.sample(kind).load_state_dict(state)

    def pad(self, **values: Any) -> PaddedBatches:
        right: dict[str, Any] = {"documents": self.documents, "batch_size": 2}
        batches = PaddedBatches(**(right | values))
        next(iter(batches))
        return batches

    def scrape(self, **labels: Any) -> bytes:
        registry = CollectorRegistry()
        registry.register(prometheus.BatchesCollector(self.open(Batches), **labels))
        return generate_latest(registry)


def with_argument(call: Callable[..., object], name: str) -> Callable[[Any], object]:
    beside = {"rank": {"world_size": 1}, "world_size": {"rank": 0}}.get(name, {})
    return lambda value: call(**{name: value}, **beside)


def table(scene: Scene) -> Iterator[tuple[str, Row]]:
    classes: list[tuple[str, Callable[..., object], Mapping[str, Values]]] = [
        ("Batches", scene.read, BATCHES),
        ("StepDataset", partial(scene.open, StepDataset), STEPS),
        ("EraDataset", partial(scene.open, EraDataset), BY_INDEX),
        ("Windows", partial(scene.open, Windows), WINDOWS),
        ("Mixture", scene.mix, MIXED),
        ("Mixture.open", partial(scene.mix_opened, Mixture.open), {**MIXED, "streams": Values((), NO_STREAMS)}),
        (
            "MixtureDataset",
            partial(scene.mix_opened, MixtureDataset),
            {"weights": WEIGHTS, "streams": Values((), NO_STREAMS)},
        ),
        ("Documents", scene.find, DOCUMENTS),
        *((kind.__name__, partial(scene.sample, kind), {**own, **SAMPLED}) for kind, own in SAMPLERS.items()),
        ("PaddedBatches", scene.pad, PADDED),
    ]
    for kind, call, arguments in classes:
        for name, values in arguments.items():
            yield f"{kind}.{name}", Row(with_argument(call, name), values, SAID.get(name, name))
    for key, (method, values) in methods(scene).items():
        name = key.rpartition(".")[2]
        yield key, Row(method, values, SAID.get(name, name))


def methods(scene: Scene) -> dict[str, tuple[Callable[[Any], object], Values]]:
    batches, steps, samples, windows = (partial(scene.open, one) for one in (Batches, StepDataset, EraDataset, Windows))
    late, mix, mixed = partial(batches, eras=range(4, 5)), scene.mix, partial(scene.mix_opened, MixtureDataset)
    found, serve = scene.documents, prometheus.serve_metrics
    streams_given = (*NO_STREAMS, {"a": 1, "b": 2}, {"": batches()}, {"a": batches().skip(1)})
    return {
        "Mixture.streams": (lambda v: Mixture(v, {"a": 1}), Values((scene.two(),), streams_given)),
        "Mixture.skip.steps": (lambda v: mix().skip(v), wholes(0, 0, 3)),
        "Mixture.load_state_dict.state_dict": (lambda v: mix().load_state_dict(v), STATE),
        "Mixture.set_weights.weights": (lambda v: mix().set_weights(v), FROM_NOW_ON),
        "Mixture.set_weights.from_step": (lambda v: mix().set_weights({"a": 1}, v), optional(1, 3)),
        "MixtureDataset.set_weights.weights": (lambda v: mixed().set_weights(v), FROM_NOW_ON),
        "MixtureDataset.set_weights.from_step": (lambda v: mixed().set_weights({"a": 1}, v), optional(0, 3)),
        "Mixture.add_stream.name": (
            lambda v: mix().add_stream(v, late(), 0.5),
            Values(("c",), (None, "", 1, b"c", "a", ("c",))),
        ),
        "Mixture.add_stream.batches": (
            lambda v: mix().add_stream("c", v, 0.5),
            Values((late(),), (None, 1, "c", mix(), batches(batch_size=3))),
        ),
        "Mixture.add_stream.weight": (
            lambda v: mix().add_stream("c", late(), v),
            Values((0.5, "1/3", Fraction(1, 9)), (None, 0, 1, 1.5, -0.1, math.nan, "x", True, [0.5])),
        ),
        "Mixture.add_stream.from_step": (lambda v: mix().add_stream("c", late(), 0.5, v), optional(1, 3)),
        "Batches.skip.steps": (lambda v: next(iter(batches(timeout=0.0).skip(v)), None), wholes(0, 0, 3)),
        "Batches.load_state_dict.state_dict": (lambda v: batches().load_state_dict(v), STATE),
        "Batches.state_after.step": (lambda v: batches().state_after(v), wholes(0, 0, 3)),
        "StepDataset.state_after.step": (lambda v: steps().state_after(v), wholes(0, 0, 3)),
        "StepDataset.resume.state": (lambda v: steps().resume(v), STATE),
        "StepDataset.load_state_dict.state_dict": (lambda v: steps().load_state_dict(v), STATE),
        "EraDataset.__getitem__.index": (lambda v: samples()[v], INDEX),
        "EraDataset.__getitems__.indices": (lambda v: samples().__getitems__(v), INDICES),
        "EraDataset.documents.indices": (lambda v: samples().documents(v), INDICES._replace(work=INDICES.work[1:])),
        "Documents.__getitem__.index": (lambda v: found[v], INDEX._replace(refused=(*NO_WHOLES, *NO_SLICES))),
        "Documents.__getitems__.indices": (found.__getitems__, INDICES),
        "Documents.take.indices": (found.take, INDICES),
        "HasTokenizer.decode.tokens": (found.decode, INDICES),
        "Documents.label_distribution.indices": (
            found.label_distribution,
            INDICES._replace(refused=INDICES.refused[1:]),
        ),
        **{f"{kind.__name__}.load_state_dict.state_dict": (partial(scene.load, kind), STATE) for kind in SAMPLERS},
        "PaddedBatches.load_state_dict.state_dict": (lambda v: scene.pad().load_state_dict(v), STATE),
        "PaddedBatches.loader.num_workers": (lambda v: scene.pad().loader(num_workers=v), wholes(0, 0, 1)),
        "Batch.part.rank": (lambda v: scene.read().part(v, 2), wholes(0, 0, 1)),
        "Batch.part.size": (lambda v: scene.read().part(0, v), wholes(1, 1, 4)),
        "Batch.part.zigzag": (lambda v: scene.read().part(0, 2, zigzag=v), FLAG),
        "BatchDocuments.from_ids.document_ids": (
            BatchDocuments.from_ids,
            Values((torch.zeros(2, 4, dtype=torch.int64),), (*NO_WHOLES, [[0]], torch.zeros(2, 4), torch.zeros(3))),
        ),
        "BatchDocuments.block_mask.block_size": (
            lambda v: scene.read().documents().block_mask(v),
            wholes(1, 1, 128)._replace(refused=(*NO_WHOLES, 0, -1, 1 << 200)),
        ),
        "BatchDocuments.padded_cu_seqlens.documents": (
            lambda v: scene.read().documents().padded_cu_seqlens(v),
            wholes(0, 9, 60)._replace(refused=(*NO_WHOLES, -1, 0, 1 << 31, 1 << 62, 1 << 200)),
        ),
        "Windows.__getitems__.indices": (lambda v: windows().__getitems__(v), INDICES),
        "Windows.indices.partition": (lambda v: windows().indices(v), PARTITION),
        "Windows.rows.partition": (lambda v: windows().rows(v, [0]), PARTITION),
        "Windows.rows.indices": (lambda v: windows().rows(0, v), INDICES),
        "Windows.at.partition": (lambda v: windows().at(v, [0]), PARTITION),
        "Windows.at.indices": (lambda v: windows().at(0, v), INDICES),
        "Windows.__getitem__.place": (lambda v: windows()[v], PLACE),
        "Metrics.since.earlier": (lambda v: Metrics().since(v), Values((Metrics(batches=1),), (*NO_WHOLES, 0))),
        "BatchesCollector.batches": (prometheus.BatchesCollector, Values((batches(),), (*NO_WHOLES, 0))),
        "BatchesCollector.labels": (lambda v: scene.scrape(rank=v), LABEL),
        "serve_metrics.port": (lambda v: serve(v).stop(), PORT),
        "serve_metrics.host": (lambda v: serve(0, v).stop(), HOST),
        "serve_metrics.registry": (
            lambda v: serve(0, registry=v).stop(),
            Values((CollectorRegistry(),), (None, 0, "registry", CollectorRegistry)),
        ),
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def rows(scene: Scene) -> dict[str, Row]:
    return dict(table(scene))


RESULTS: Final = (
    "Batch BatchDocuments Behind Metrics PaddedBatch Source StoredDocument StreamShare XY ContextPart ModelInputs"
)
"""What only carries results, and is made by nobody."""
INHERITED: Final = {
    *("Batches.skip.steps", "Batches.state_after.step", "Mixture.skip.steps", "HasTokenizer.decode.tokens"),
    *(f"{kind.__name__}.load_state_dict.state_dict" for kind in SAMPLERS),
    *(f"StepDataset.{name}" for name in inspect.signature(Batches).parameters),
    *(f"Mixture.open.{name}" for name in inspect.signature(Mixture).parameters),  # which takes them, too
    "BatchDocuments.from_ids.document_ids",  # of the class
}
OF_OTHERS: Final = {
    *("Batch.to.device", "Batch.to.non_blocking", "ModelInputs.to.device", "ModelInputs.to.non_blocking"),  # torch's
    *("PaddedBatches.loader.options", "StepDataset.options", "MixtureDataset.options"),  # given on
    *("ModelInputs.__getitem__.name", "PaddedBatches.__getitem__.index"),  # as any dictionary; refuses whatever it is
}


def public_arguments() -> set[str]:
    things = {name: getattr(public, name) for name in public.__all__}
    things |= {name: getattr(prometheus, name) for name in ("BatchesCollector", "serve_metrics")}
    found: set[str] = set()
    for name, thing in things.items():
        if name not in RESULTS.split():
            found |= {f"{name}.{argument}" for argument in inspect.signature(thing).parameters}
        for method, function in vars(thing).items():
            is_ours = inspect.isfunction(function) and not function.__qualname__.startswith("__create_fn__")
            if is_ours and (method in {"__getitem__", "__getitems__"} or not method.startswith("_")):
                arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
                found |= {f"{name}.{method}.{argument}" for argument in arguments}
    return (found | INHERITED) - OF_OTHERS


KEYS: Final = sorted(public_arguments())


def test_every_argument_of_what_is_public_is_in_the_table(rows: dict[str, Row]) -> None:
    """One that is added later has its values here."""
    assert rows.keys() == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.cases(30)
def test_what_is_right_works_whatever_its_type(rows: dict[str, Row], key: str) -> None:
    call, values, _ = rows[key]
    for value in values.work:
        call(value)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.slow
@pytest.mark.cases(30)
def test_what_is_wrong_is_refused_with_its_name_and_value(rows: dict[str, Row], key: str) -> None:
    """No traceback of numpy's, torch's or pathlib's."""
    call, values, name = rows[key]
    assert values.refused
    for value in values.refused:
        with pytest.raises((InputError, StoreError)) as caught:
            call(value)
        said = str(caught.value)
        assert name in said, (said, shown(value))
        assert shown(value)[:150] in said, said
        assert any(word in said for word in (": give ", "check both names", "use up to")), said
        assert len(said) < 1000, said


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.cases(60)
def test_what_is_huge_works_or_is_refused(rows: dict[str, Row], key: str) -> None:
    """A run that has no such samples says so, or waits for them, here until its timeout of 0 seconds."""
    call, values, _ = rows[key]
    for value in values.either:
        try:
            call(value)
        except TokenMillError as error:
            assert len(str(error)) < 1000  # noqa: PT017 - or there was none


@given(st.dictionaries(st.sampled_from(list(BATCHES)), st.data(), max_size=4))
def test_nothing_that_is_given_ends_in_an_error_of_python(scene: Scene, chosen: dict[str, Any]) -> None:
    given_values = {name: data.draw(st.sampled_from(sum(BATCHES[name], ()))) for name, data in chosen.items()}
    given_values.pop("poll_seconds", None)  # which would be slept for
    try:
        scene.read(**given_values)
    except TokenMillError as error:
        assert str(error)  # noqa: PT017 - or there was none
