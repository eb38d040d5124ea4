"""A packed store and one that produce, mill and segment worker have filled: the same files, byte for byte."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.sources.files import write_jsonl, write_parquet
from tests.app.tools.pack.packing import blocks_in, content, every_format, opened, pack_into, require_equal, rows
from tests.conftest import TopicFactory
from tests.service import Service, in_own_loop, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.pack import parted_sources
from tokenmill.app.tools.produce.producing import RunPlan, flush, produce
from tokenmill.app.tools.produce.run_notes import run_identity
from tokenmill.errors import StoreError

FIT: dict[str, Any] = {"name": "fit", "open_blocks": 5, "max_age_offsets": 40}
CHUNKS: dict[str, Any] = {"name": "chunks", "chunk_tokens": 126, "rest": "pad"}


def sent(settings: Settings, topic: str, paths: list[Path], options: dict[str, Any], **plan: Any) -> None:
    """Produce, as the command does."""
    identity = run_identity(topic, {}, [str(path) for path in paths]) if plan.pop("resume", True) else None
    _, sources = opened(settings, paths, options, topic)
    in_own_loop(lambda: produce(settings, topic, sources, RunPlan(identity=identity, **plan)))


def test_packed_is_what_is_milled_of_every_format(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats, packings, splits, keys, fields, steps, shuffling, limits and flushes; files in parts and whole."""
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 1)
    monkeypatch.setattr(parted_sources, "PART_BYTES", 3000)
    formats = every_format(tmp_path / "formats")
    lines, table = tmp_path / "large.jsonl", tmp_path / "large.parquet"
    write_jsonl(lines, rows(300, 77))
    write_parquet(table, rows(300, 78))
    cases: list[tuple[list[Path], dict[str, Any], dict[str, Any]]] = [
        ([formats], {}, {}),
        ([lines, table], {"key": "lang", "metadata_fields": ("lang", "score")}, {"flush": True}),
        ([formats / "h.csv", lines], {"plain": True}, {"shuffle": 50, "seed": 3, "limit": 200, "resume": False}),
        ([lines], {}, {"flush": True}),
    ]
    partitions_of = (2, 3, 1, 2)
    names = tuple(topic(partitions) for partitions in partitions_of)
    tables = {
        names[0]: {"splits": {"train": 50, "validation": 50}},
        names[1]: {
            "splits": {"train": 90, "_unused": 10},
            "metadata_fields": ("lang", "score"),
            "min_chars": 30,
            "packing": "rows",
        },
        names[2]: {"splits": {"all": 1}, "segment_blocks": 5, "packing": CHUNKS},
        names[3]: {"splits": {"train": 70, "validation": 30}, "packing": FIT},
    }
    settings = service_settings(broker, names[0], tmp_path / "milled", raw_topics=names, topic=tables)
    packed = settings.model_copy(update={"store": tmp_path / "packed" / "store"})
    for name, partitions, (paths, options, plan) in zip(names, partitions_of, cases, strict=True):
        pack_into(packed, paths, topic=name, reading=options, partitions=partitions, processes=2, **plan)
        sent(settings, name, paths, options, **{key: value for key, value in plan.items() if key != "flush"})
        if plan.get("flush"):
            in_own_loop(partial(flush, settings, name))
    streams = [stream.name for stream in settings.streams()]
    wanted = {stream: blocks_in(packed.store, stream) for stream in streams}
    assert all(sum(found) > 10 for found in wanted.values())

    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        service.wait_until(lambda: stored(settings.store, streams) == wanted)
        service.stop()

    require_equal(content(settings.store), content(packed.store))


def stored(store: Path, streams: list[str]) -> dict[str, list[int]]:
    """Return the blocks of each stream's partitions; nothing while one is missing."""
    try:
        return {stream: blocks_in(store, stream) for stream in streams}
    except (StoreError, FileNotFoundError):
        return {}
