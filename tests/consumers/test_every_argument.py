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
    Batch,
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
    None,
    "4",
    b"4",
    "",
    [4],
    (4,),
    {4},
    {},
    range(4),
    object,
    1j,
    np.array([4, 5]),
    torch.tensor([4, 5]),
)
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
        (0, 2),
        [0],
        0,
        3,
        "0:2",
        "",
        {0},
        slice(0, 2),
        1.5,
        True,
        range(0),
        range(8, 0, -1),
        range(0, 8, 2),
        range(-1, 2),
    ),
    (range(1 << 62), range(1 << 70), range(4, 99), range(98, 99)),
)
TIME: Final = Values(
    (0, 1, 0.5, np.float32(1), np.int64(1)),
    ("1", b"1", -1, -0.5, math.nan, -math.inf, True, [1.0], 1j, Decimal(1), 10**400, 1 << 200, np.float64("nan"), {}),
    (1e18, 1 << 62, 1e300),
)
NO_STATES: Final = (*NO_WHOLES, {"sample": 2}, "state", [], [("format", 1)], {"data": None})
STATE: Final = Values((), NO_STATES)
RANKS: Final[Mapping[str, Values]] = {
    "rank": wholes(0, 0)._replace(refused=(*NO_WHOLES[1:], -1, 1), either=(None, *HUGE)),
    "world_size": wholes(1, 1, 2)._replace(refused=(*NO_WHOLES[1:], 0, -1), either=(None, *HUGE)),
}
"""Each beside the other: one alone is refused, or means what it says there."""
LOOPS: Final[Mapping[str, tuple[Any, ...]]] = {"device": ("cpu", torch.device("cpu")), "stop": (None,), "worker": ()}
"""What a `StepDataset` leaves to the loop, and what it takes as nothing at all."""
OWN_LENGTH: Final = wholes(1, 1, 2, 4)._replace(work=(None, 1, np.int32(2), torch.tensor(4)))
BATCHES: Final[Mapping[str, Values]] = {
    "store": PATH,
    "stream": NAME,
    "cache": Values((None,), (4, "", "cache", b"cache", ["cache"], True, "s3://cache")),
    "cache_bytes": Values((None,), (*NO_WHOLES[1:], 0, 1, -1, 1 << 30)),
    "batch_size": wholes(1, 1, 3),
    "sequence_length": OWN_LENGTH._replace(refused=(*NO_WHOLES[1:], 0, -1, 3, 8), either=HUGE),
    "seed": Values(
        (0, -1, np.int64(-1), np.uint8(7), (1 << 63) - 1, -(1 << 63), 1 << 63, np.uint64((1 << 64) - 1)),
        (*NO_WHOLES, 1 << 64, -(1 << 63) - 1, 1 << 200),
    ),
    "rank": RANKS["rank"],
    "world_size": RANKS["world_size"]._replace(either=(None, *HUGE)),
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
            None,
            0,
            "01",
            (0,),
            (0, 1, 2),
            (1, 1),
            ("0", "1"),
            (0.0, 1),
            (0, 0),
            (True, 2),
            (-1, 2),
            (0, 1 << 63),
            {0: 2},
        ),
    ),
    "check": FLAG,
    "on_damage": Values(("refuse", "skip"), (None, "ignore", "", True, 0, ["skip"], b"skip")),
    "timeout": TIME._replace(work=(*TIME.work, None, math.inf, float("inf"), np.float32("inf"))),
    "stop": Values((None, lambda: False), (True, 5, "never", [])),
    "poll_seconds": TIME._replace(refused=(*TIME.refused, None, math.inf)),
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
        None,
        1,
        "a=1",
        {},
        [],
        {"a": 0},
        {"a": -1, "b": 1},
        {"a": math.nan, "b": 1},
        {"a": math.inf},
        {"a": "one"},
        {"a": "1/0"},
        {"a": True},
        {"a": None},
        {"a": 1, "c": 1},
        {1: 1},
        {"a": [1]},
        {"a": 1j},
        {"a": "1e9"},
        {"a": 10**60},
        {"a": Decimal("NaN")},
        [(0, {"a": 1}), (0, {"b": 1})],
        [(1, {"a": 1})],
        [(0, {"a": 1}), (9, {"c": 1})],
        [(0, {"a": 1}), (5, {"a": 0})],
        [{"a": 1}],
        [(0.0, {"a": 1})],
        [(0, {"a": 1}), (-5, {"b": 1})],
    ),
)
MIXED: Final[Mapping[str, Values]] = {
    "weights": WEIGHTS,
    "linear": FLAG,
    "unit": Values((None, "sample", "step"), ("steps", "", 1, True, ["step"])),
    "at_end": Values(
        ("wait", "leave", {"a": "leave"}), (None, "", "repeat", {"c": "wait"}, {"a": "stop"}, 1, ["wait"])
    ),
    "interleave": Values(("sample", "batch"), (None, "batches", 1, True)),
    "by": Values(("samples", "tokens"), (None, "sample", 1, True)),
}
INDICES: Final = Values(
    ([], [0], [0, 3], (1, 2), range(2), np.arange(2), np.arange(2, dtype=np.uint8), torch.arange(2), [np.int32(1)]),
    (
        None,
        4,
        "01",
        b"01",
        [0.5],
        [True],
        [None],
        ["0"],
        [[0]],
        [[0], [1, 2]],
        {0},
        {0: 1},
        np.array([0.0]),
        [1 << 200],
        torch.ones(1, 2, dtype=torch.int64),
    ),
)
FIELD: Final = Values((None, "label"), (4, "", b"label", ["label"], True))
LABEL_NAMES: Final = Values(
    (["y"], ("y", 1), ["n", "y"]),
    ("y", b"y", [], ["y", "y"], [1.5], [None], [True], {"y": 0}, 4, range(2), np.arange(2)),
)
CACHED: Final = ("cache", "cache_bytes")
DOCUMENTS: Final[Mapping[str, Values]] = {
    **{name: BATCHES[name] for name in CACHED},
    "store": PATH,
    "stream": NAME,
    "eras": Values((None, range(2), range(1)), ERAS.refused),
    "label_field": FIELD,
    "label_names": LABEL_NAMES,
    "on_missing_label": Values(("drop",), (None, "skip", "", True, 0, ["drop"], b"drop")),
    "check": FLAG,
}
SAMPLERS: Final[Mapping[str, Mapping[str, Values]]] = {
    "EraSampler": {"shuffle": FLAG},
    "BucketSampler": {"bucket_size": wholes(1, 1, 3), "window": wholes(1, 64)},
    "StratifiedSampler": {"num_samples": wholes(1, 1, 9), "num_strata": wholes(1, 1, 3)},
}
SAMPLED: Final[Mapping[str, Values]] = {
    "seed": BATCHES["seed"],
    "passes": wholes(1, 1, 2)._replace(either=HUGE[2:]),
    **RANKS,
    "documents": Values((), (*NO_WHOLES[:-1], "documents", Documents)),
    "state_dict": STATE,
}
PADDED: Final[Mapping[str, Values]] = {
    "documents": SAMPLED["documents"],
    "sampler": Values((None,), (4, "eras", EraSampler, [0])),
    "batch_size": wholes(1, 1, 3)._replace(either=HUGE),
    "max_length": wholes(1, 1, 64)._replace(work=(None, 1, np.int64(64)), refused=(*NO_WHOLES[1:], 0, -1)),
    "padding": Values(("longest",), (None, "left", "", True, 0, ["longest"], b"longest")),
    "padding_id": wholes(0, 0, 7)._replace(work=(None, 0, np.int64(7)), refused=(*NO_WHOLES[1:], -1), either=HUGE),
    **RANKS,
    "drop_last": FLAG,
    "device": BATCHES["device"],
    "prefetch": BATCHES["prefetch"],
}
SLICES: Final = (slice(0.5, None), slice(None, "4"), slice(0, 4, 0))
PARTITION: Final = wholes(0, 0, 2)._replace(refused=(*NO_WHOLES, -1, 3, 99))


class Scene:
    """What the calls are made on; nothing that they do lasts."""

    def __init__(self, path: Path) -> None:
        self.store = era_store(path / "plain").path
        self.labelled = text_store(path / "labelled", [3, 9, 4] * 4, labels=["y"])
        self.documents = Documents(self.labelled, STREAM, label_field="label", label_names=["y"])

    def open(self, kind: Callable[..., Any], **given_values: Any) -> Any:
        right: dict[str, Any] = {"store": self.store, "stream": STREAM}
        right |= {"length": 4} if kind is Windows else {"sequence_length": 4}
        right |= {"batch_size": 2} if kind in {Batches, StepDataset} else {}
        return kind(**(right | given_values))

    def read(self, **given_values: Any) -> Batch | None:
        batches = self.open(Batches, **({"timeout": 0.0} | given_values))
        json.dumps(batches.state_dict())
        return next(iter(batches), None)

    def two(self, **options: Any) -> Any:
        return {name: self.open(Batches, **({"timeout": 0.0, "eras": eras} | options)) for name, eras in HALVES.items()}

    def mix(self, **given_values: Any) -> Mixture:
        mixture = Mixture(**({"streams": self.two(), "weights": {"a": 1, "b": 1}} | given_values))
        json.dumps(mixture.state_dict())
        next(iter(mixture))
        return mixture

    def mix_opened(self, kind: Callable[..., Any], **given_values: Any) -> Any:
        shared = {"store": self.store, "stream": STREAM, "batch_size": 2, "sequence_length": 4}
        streams = {name: {"eras": eras} for name, eras in HALVES.items()}
        return kind(**({"streams": streams, "weights": {"a": 1, "b": 1}} | shared | given_values))

    def find(self, **given_values: Any) -> Documents:
        right: dict[str, Any] = {"store": self.labelled, "stream": STREAM}
        if {"label_names", "on_missing_label"} & {*given_values}:
            right |= {"label_field": "label", "on_missing_label": "drop", "label_names": ["y"]}
        elif given_values.get("label_field") == "label":
            right |= {"on_missing_label": "drop"}
        found = Documents(**(right | given_values))
        found.take([0] if len(found) else [])
        return found

    def sample(self, kind: Callable[..., Any], **given_values: Any) -> None:
        right: dict[str, Any] = {"documents": self.documents}
        right |= {"num_samples": 4, "num_strata": 2} if kind is StratifiedSampler else {}
        sampler = kind(**(right | {name: value for name, value in given_values.items() if name != "state_dict"}))
        if "state_dict" in given_values:
            sampler.load_state_dict(given_values["state_dict"])
        next(iter(sampler), None)

    def pad(self, **given_values: Any) -> PaddedBatches:
        right: dict[str, Any] = {"documents": self.documents, "batch_size": 2}
        batches = PaddedBatches(**(right | given_values))
        next(iter(batches))
        return batches

    def skip(self, steps: Any) -> None:
        next(iter(self.open(Batches, timeout=0.0).skip(steps)), None)

    def scrape(self, **labels: Any) -> bytes:
        registry = CollectorRegistry()
        registry.register(prometheus.BatchesCollector(self.open(Batches), **labels))
        return generate_latest(registry)


SAID: Final = {
    "Batches.load_state_dict.state_dict": "state",
    "BatchesCollector.labels": "label rank",
    "Mixture.add_stream.name": "stream",
    "Mixture.add_stream.weight": "weight",
    "Mixture.load_state_dict.state_dict": "state",
    "Mixture.set_weights.weights": "weight",
    "Mixture.streams": "stream",
    "MixtureDataset.set_weights.weights": "weight",
    "PaddedBatches.load_state_dict.state_dict": "state",
    "StepDataset.load_state_dict.state_dict": "state",
}
"""How messages call an argument, where not by its name."""
HALVES: Final = {"a": range(2), "b": range(2, 4)}


def mixed_steps(scene: Scene) -> Batches:
    batches: Batches = scene.open(Batches)
    return batches.skip(1)


def with_argument(call: Callable[..., object], name: str, **fixed: Any) -> Callable[[Any], object]:
    fixed |= {"rank": {"world_size": 1}, "world_size": {"rank": 0}}.get(name, {})
    return lambda value: call(**({name: value} | fixed))


def document_rows(scene: Scene) -> Iterator[tuple[str, Row]]:
    for name, values in DOCUMENTS.items():
        yield f"Documents.{name}", Row(with_argument(scene.find, name), values, name)
    for kind in (EraSampler, BucketSampler, StratifiedSampler):
        for name, values in {**SAMPLERS[kind.__name__], **SAMPLED}.items():
            key = f"{kind.__name__}.load_state_dict.state_dict" if name == "state_dict" else f"{kind.__name__}.{name}"
            told = "state" if name == "state_dict" else name
            yield key, Row(with_argument(scene.sample, name, kind=kind), values, told)
    for name, values in PADDED.items():
        yield f"PaddedBatches.{name}", Row(with_argument(scene.pad, name), values, name)


def table(scene: Scene) -> Iterator[tuple[str, Row]]:
    batches, steps, samples, windows = (
        partial(scene.open, kind) for kind in (Batches, StepDataset, EraDataset, Windows)
    )
    for name, values in BATCHES.items():
        yield f"Batches.{name}", Row(with_argument(scene.read, name), values, name)
    for name, values in BATCHES.items():
        only = values if name not in LOOPS else Values(LOOPS[name], ("cuda", True, [0], np.arange(2), (1, 2)))
        yield f"StepDataset.{name}", Row(with_argument(scene.open, name, kind=StepDataset), only, name)
    for name in ("store", "stream", "sequence_length", "eras", "check", "documents", *CACHED):
        values = BATCHES[name]._replace(either=()) if name == "eras" else BATCHES[name]
        yield f"EraDataset.{name}", Row(with_argument(scene.open, name, kind=EraDataset), values, name)
    length = wholes(1, 1, 9)._replace(work=(None, 1, np.uint8(9)), refused=(*NO_WHOLES[1:], 0, -1))
    cached = {name: BATCHES[name] for name in CACHED}
    for name, values in {"store": PATH, "stream": NAME, "length": length, "check": FLAG, **cached}.items():
        yield f"Windows.{name}", Row(with_argument(scene.open, name, kind=Windows), values, name)
    for name, values in MIXED.items():
        told = "weight" if name == "weights" else name
        yield f"Mixture.{name}", Row(with_argument(scene.mix, name), values, told)
        opened = with_argument(scene.mix_opened, name, kind=Mixture.open)
        yield f"Mixture.open.{name}", Row(opened, values, told)
    yield (
        "MixtureDataset.weights",
        Row(with_argument(scene.mix_opened, "weights", kind=MixtureDataset), WEIGHTS, "weight"),
    )
    no_streams: tuple[Any, ...] = (None, 1, "ab", [], {}, {"a": None, "b": 1}, {1: {}}, {"a": [], "b": []})
    for kind in (Mixture.open, MixtureDataset):
        key = "Mixture.open.streams" if kind is not MixtureDataset else "MixtureDataset.streams"
        yield key, Row(with_argument(scene.mix_opened, "streams", kind=kind), Values((), no_streams), "stream")
    streams_given = (*no_streams, {"a": 1, "b": 2}, {"": scene.open(Batches)}, {"a": mixed_steps(scene)})
    yield from document_rows(scene)
    found = scene.documents
    rows: dict[str, tuple[Callable[[Any], object], Values]] = {
        "Mixture.streams": (lambda v: Mixture(v, {"a": 1}), Values((scene.two(),), streams_given)),
        "Mixture.skip.steps": (lambda v: scene.mix().skip(v), wholes(0, 0, 3)),
        "Mixture.load_state_dict.state_dict": (lambda v: scene.mix().load_state_dict(v), STATE),
        "Mixture.set_weights.weights": (
            lambda v: scene.mix().set_weights(v),
            Values(WEIGHTS.work[:5], (*WEIGHTS.refused[:20], [(0, {"a": 1})])),
        ),
        "Mixture.set_weights.from_step": (lambda v: scene.mix().set_weights({"a": 1}, v), optional(1, 3)),
        "MixtureDataset.set_weights.weights": (
            lambda v: scene.mix_opened(MixtureDataset).set_weights(v),
            Values(WEIGHTS.work[:2], WEIGHTS.refused[:20]),
        ),
        "MixtureDataset.set_weights.from_step": (
            lambda v: scene.mix_opened(MixtureDataset).set_weights({"a": 1}, v),
            optional(0, 3),
        ),
        "Mixture.add_stream.name": (
            lambda v: scene.mix().add_stream(v, scene.open(Batches, eras=range(4, 5)), 0.5),
            Values(("c",), (None, "", 1, b"c", "a", ("c",))),
        ),
        "Mixture.add_stream.batches": (
            lambda v: scene.mix().add_stream("c", v, 0.5),
            Values(
                (scene.open(Batches, eras=range(4, 5)),), (None, 1, "c", scene.mix(), scene.open(Batches, batch_size=3))
            ),
        ),
        "Mixture.add_stream.weight": (
            lambda v: scene.mix().add_stream("c", scene.open(Batches, eras=range(4, 5)), v),
            Values((0.5, "1/3", Fraction(1, 9)), (None, 0, 1, 1.5, -0.1, math.nan, "x", True, [0.5])),
        ),
        "Mixture.add_stream.from_step": (
            lambda v: scene.mix().add_stream("c", scene.open(Batches, eras=range(4, 5)), 0.5, v),
            optional(1, 3),
        ),
        "Batches.skip.steps": (scene.skip, wholes(0, 0, 3)),
        "Batches.load_state_dict.state_dict": (lambda v: batches().load_state_dict(v), STATE),
        "Batches.state_after.step": (lambda v: batches().state_after(v), wholes(0, 0, 3)),
        "StepDataset.state_after.step": (lambda v: steps().state_after(v), wholes(0, 0, 3)),
        "StepDataset.resume.state": (lambda v: steps().resume(v), STATE),
        "StepDataset.load_state_dict.state_dict": (lambda v: steps().load_state_dict(v), STATE),
        "EraDataset.__getitem__.index": (
            lambda v: samples()[v],
            wholes(0, 0, 3)._replace(refused=NO_WHOLES, either=()),
        ),
        "EraDataset.__getitems__.indices": (lambda v: samples().__getitems__(v), INDICES),
        "EraDataset.documents.indices": (lambda v: samples().documents(v), INDICES._replace(work=INDICES.work[1:])),
        "Documents.__getitem__.index": (
            lambda v: found[v],
            wholes(0, 0, 3)._replace(refused=(*NO_WHOLES, *SLICES), either=()),
        ),
        "Documents.__getitems__.indices": (found.__getitems__, INDICES),
        "Documents.take.indices": (found.take, INDICES),
        "HasTokenizer.decode.tokens": (found.decode, INDICES),
        "Documents.label_distribution.indices": (
            found.label_distribution,
            INDICES._replace(refused=INDICES.refused[1:]),
        ),
        "PaddedBatches.load_state_dict.state_dict": (lambda v: scene.pad().load_state_dict(v), STATE),
        "PaddedBatches.loader.num_workers": (lambda v: scene.pad().loader(num_workers=v), wholes(0, 0, 1)),
        "Batch.part.rank": (lambda v: scene.read().part(v, 2), wholes(0, 0, 1)),  # type: ignore[union-attr]
        "Batch.part.size": (lambda v: scene.read().part(0, v), wholes(1, 1, 4)),  # type: ignore[union-attr]
        "Batch.part.zigzag": (lambda v: scene.read().part(0, 2, zigzag=v), FLAG),  # type: ignore[union-attr]
        "BatchDocuments.from_ids.document_ids": (
            BatchDocuments.from_ids,
            Values((torch.zeros(2, 4, dtype=torch.int64),), (*NO_WHOLES, [[0]], torch.zeros(2, 4))),
        ),
        "BatchDocuments.block_mask.block_size": (
            lambda v: scene.read().documents().block_mask(v),  # type: ignore[union-attr]
            wholes(1, 1, 128)._replace(refused=(*NO_WHOLES, 0, -1, 1 << 200)),
        ),
        "Windows.__getitems__.indices": (lambda v: windows().__getitems__(v), INDICES),
        "Windows.indices.partition": (lambda v: windows().indices(v), PARTITION),
        "Windows.rows.partition": (lambda v: windows().rows(v, [0]), PARTITION),
        "Windows.rows.indices": (lambda v: windows().rows(0, v), INDICES),
        "Windows.at.partition": (lambda v: windows().at(v, [0]), PARTITION),
        "Windows.at.indices": (lambda v: windows().at(0, v), INDICES),
        "Windows.__getitem__.place": (
            lambda v: windows()[v],
            Values(((0, 0), (2, np.int32(3)), 0, 7), (*NO_WHOLES[:-3], (0,), (0, 0.5), (0, 1, 2), ("0", 1), (True, 1))),
        ),
        "BatchDocuments.padded_cu_seqlens.documents": (
            lambda v: scene.read().documents().padded_cu_seqlens(v),  # type: ignore[union-attr]
            wholes(0, 9, 60)._replace(refused=(*NO_WHOLES, -1, 0, 1 << 31, 1 << 62, 1 << 200)),
        ),
        "Metrics.since.earlier": (lambda v: Metrics().since(v), Values((Metrics(batches=1),), (*NO_WHOLES, 0))),
        "BatchesCollector.batches": (prometheus.BatchesCollector, Values((batches(),), (*NO_WHOLES, 0))),
        "BatchesCollector.labels": (
            lambda v: scene.scrape(rank=v),
            Values(("0", 0, np.int64(0), "", 'a "b"\n'), (None, True, 0.5, [0], b"0", {}), HUGE),
        ),
        "serve_metrics.port": (
            lambda v: prometheus.serve_metrics(v).stop(),
            Values((0, np.int32(0)), (*NO_WHOLES, -1, 1 << 16, 1 << 31, 1 << 200)),
        ),
        "serve_metrics.host": (
            lambda v: prometheus.serve_metrics(0, v).stop(),
            Values(
                ("127.0.0.1", "localhost"), (None, 0, b"127.0.0.1", "x" * 300, "203.0.113.1", "a\0b", ["127.0.0.1"])
            ),
        ),
        "serve_metrics.registry": (
            lambda v: prometheus.serve_metrics(0, registry=v).stop(),
            Values((CollectorRegistry(),), (None, 0, "registry", CollectorRegistry)),
        ),
    }
    for key, (call, values) in rows.items():
        yield key, Row(call, values, SAID.get(key) or key.rpartition(".")[2])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def rows(scene: Scene) -> dict[str, Row]:
    return dict(table(scene))


def public_arguments() -> set[str]:
    """Return every argument of what is public; what only carries results is made by nobody."""
    results = {"Batch", "BatchDocuments", "Behind", "Metrics", "PaddedBatch", "Source", "StoredDocument", "StreamShare"}
    results |= {"XY", "ContextPart", "ModelInputs"}
    things = {name: getattr(public, name) for name in public.__all__}
    things |= {name: getattr(prometheus, name) for name in ("BatchesCollector", "serve_metrics")}
    found: set[str] = set()
    for name, thing in things.items():
        if name not in results:
            found |= {f"{name}.{argument}" for argument in inspect.signature(thing).parameters}
        for method, function in vars(thing).items():
            is_ours = inspect.isfunction(function) and not function.__qualname__.startswith("__create_fn__")
            if is_ours and (method in {"__getitem__", "__getitems__"} or not method.startswith("_")):
                arguments = [argument for argument in inspect.signature(function).parameters if argument != "self"]
                found |= {f"{name}.{method}.{argument}" for argument in arguments}
    found |= {f"StepDataset.{name}" for name in inspect.signature(Batches).parameters}
    found -= {"Batch.to.device", "Batch.to.non_blocking"}  # torch's own, given on to it
    found |= {f"Mixture.open.{name}" for name in inspect.signature(Mixture).parameters}  # which takes them, too
    found |= {"Batches.skip.steps", "Batches.state_after.step", "Mixture.skip.steps"}  # inherited
    found -= {"StepDataset.options", "MixtureDataset.options"}
    found |= {f"{kind}.load_state_dict.state_dict" for kind in SAMPLERS}  # inherited
    found |= {"BatchDocuments.from_ids.document_ids"}  # of the class
    found |= {"HasTokenizer.decode.tokens"}  # inherited by all that read tokens
    found -= {"ModelInputs.to.device", "ModelInputs.to.non_blocking", "PaddedBatches.loader.options"}  # torch's own
    found -= {"ModelInputs.__getitem__.name"}  # as any dictionary
    found -= {"PaddedBatches.__getitem__.index"}  # refuses whatever it is given
    return found


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
