"""What the tests of pack share: packing in this process, and comparing stores file by file."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.app.sources.files import write_jsonl
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, Reading, ShapeOptions, find_sources, shape_for
from tokenmill.app.tools.pack.packing_run import PackPlan, PackSummary, pack
from tokenmill.app.tools.produce.run_notes import run_identity
from tokenmill.store import open_partition, partitions_in, streams_in
from tokenmill.store.layout import partition_directory, segment_firsts

Paths = Sequence[Path | str]
Options = dict[str, Any] | None

WORDS = ["mill", "stone", "wheel", "grain", "Körner", "flour"]


def small_settings(store: Path, **others: Any) -> Settings:
    small: dict[str, Any] = {"tokenizer": "bytes", "sequence_length": 63, "segment_blocks": 16, "era_blocks": 30}
    return Settings(**small | {"store": store} | others)


def rows(count: int, seed: int = 0, words: int = 40) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {
            "id": f"document {seed}-{number}",
            "text": " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, words))),
            "lang": rng.choice(["de", "en"]),
            "score": number % 7,
        }
        for number in range(count)
    ]


def corpus(folder: Path, made: list[dict[str, Any]]) -> list[Path]:
    """Write a file of rows; return its path, as the paths that are to be packed."""
    write_jsonl(folder / "a.jsonl", made)
    return [folder / "a.jsonl"]


def opened(
    settings: Settings, paths: Paths, reading: Options = None, topic: str | None = None
) -> tuple[Reading, list[DocumentSource]]:
    own = settings.for_topic(topic or settings.raw_topics[0])
    how = Reading(shape_for(own, settings.max_record_bytes, ShapeOptions(**(reading or {}))))
    return how, find_sources([str(path) for path in paths], how)


def plan_of(
    settings: Settings, paths: Paths, *, resume: bool = True, reading: Options = None, topic: str = "", **plan: Any
) -> PackPlan:
    """Return a plan, as the command makes one."""
    name = topic or settings.raw_topics[0]
    options = {"shape": repr(sorted((reading or {}).items())), "shuffle": plan.get("shuffle")}
    identity = run_identity(name, options, [str(path) for path in paths]) if resume else None
    whole: dict[str, Any] = {"raw_topic": name, "partitions": 2, "processes": 1, "identity": identity}
    return PackPlan(**whole | plan)


def pack_into(settings: Settings, paths: Paths, **plan: Any) -> PackSummary:
    how, sources = opened(settings, paths, plan.get("reading"), plan.get("topic"))
    return asyncio.run(pack(settings, sources, how, plan_of(settings, paths, **plan)))


def blocks_in(store: Path, stream: str) -> list[int]:
    return [open_partition(store, stream, number).blocks for number in partitions_in(store, stream)]


def content(store: Path, *, eras: bool = False) -> dict[str, bytes]:
    """Return all committed files of a store's streams that stores of the same stream have in common.

    Commit logs differ, and so does the index of eras: they have the commits. ``eras``: also those.
    """
    found = {}
    for stream in streams_in(store):
        directory = store / stream
        for name in ("stream.json", "tokenizer.json", *(("eras.jsonl",) if eras else ())):
            if (directory / name).exists():
                found[f"{stream}/{name}"] = (directory / name).read_bytes()
        for partition in partitions_in(store, stream):
            place = partition_directory(store, stream, partition)
            for first in segment_firsts(path.name for path in place.iterdir()):
                for file in sorted(place.glob(f"{first:012d}.*")):
                    if file.suffix != ".commits":
                        found[f"{stream}/{partition}/{file.name}"] = file.read_bytes()
    return found


def require_equal(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    assert sorted(one) == sorted(other)
    assert [name for name in one if one[name] != other[name]] == []
