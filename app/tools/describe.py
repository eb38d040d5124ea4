"""What a data set is, from facts alone: those of its store, and those that its brokers tell.

As JSON (`DataSetFacts.to_dict`); as `croissant` 1.1 (ML Commons), JSON-LD; and as a `card`, as hubs of data sets show
it: YAML in front, then Markdown for people.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

import numpy as np

import tokenmill
from tokenmill.errors import BrokerError, SettingsError, StoreError, TopicError
from tokenmill.recipe import canonical_json
from tokenmill.store import StreamInfo, open_eras, open_partition, partitions_in, read_stream, streams_in
from tokenmill.store.layout import TOKENIZER_FILE, SegmentPaths, partition_directory, stream_directory
from tokenmill.store.sealing import sealed_segments
from tokenmill.untrusted import regular_file
from tokenmill.wire.pieces import PADDING

from ..broker_contact import no_answer
from ..settings import Settings
from ..sources.source_changes import KnownSource
from .inspect.packed import StoredPack
from .inspect.record_ledger import ChainLedger, added, read_ledger
from .produce.run_notes import RunStart, produced_runs

FORMAT: Final = 1
"""Version of `DataSetFacts.to_dict`."""
BLOCKS_AT_ONCE: Final = 1 << 14
ANSWER_SECONDS: Final = 10.0


@dataclass(slots=True)
class DataSetFacts:
    """All that is known of a stream; what is not known is in `unknown`, with the reason."""

    info: StreamInfo
    live: bool
    """Whether it may still grow: its eras have no end marker."""
    partitions: list[dict[str, Any]]
    """Of each partition: blocks, and the offsets of the raw records that they came from."""
    splits: dict[str, dict[str, Any]]
    """Of each stream in the store that has another share of the same raw topic, this one too: its split and blocks."""
    eras: dict[str, Any]
    segments: list[dict[str, Any]]
    """Sealed ones, whose files never change again: ``name`` is the path of the tokens in the stream's folder."""
    tokenizer: dict[str, Any]
    counts: dict[str, Any] | None = None
    languages: dict[str, dict[str, int]] | None = None
    files: list[dict[str, Any]] | None = None
    """What `tokenmill produce` sent into the raw topic, or `pack` into the store: each run, and what it read."""
    packed: StoredPack | None = None
    """What `tokenmill pack` noted, where that filled the stream: then no broker is asked."""
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def genesis(self) -> dict[str, Any]:
        """What settled the stream; empty in a store of an early version."""
        return dict(self.info.values.get("genesis", {}))

    @property
    def origin(self) -> str:
        """What its documents came from, for people."""
        topic = self.info.values["raw_topic"]
        return f"the Kafka topic {topic}" if self.packed is None else f"files that were packed as {topic}"

    @property
    def blocks(self) -> int:
        """Blocks that the store holds."""
        return sum(one["blocks"] - one["first_block"] for one in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "format": FORMAT,
            "stream": self.info.name,
            "fingerprint": self.info.fingerprint.hex(),
            "isLiveDataset": self.live,
            "raw_topic": self.info.values["raw_topic"],
            "split": self.info.recipe.get("split"),
            "blocks": self.blocks,
            "tokens": self.blocks * self.info.block_tokens,
            "block_tokens": self.info.block_tokens,
            "dtype": self.info.dtype.name,
            "segment_blocks": self.info.segment_blocks,
            "sources": self.partitions,
            "splits": self.splits,
            "eras": self.eras,
            "recipe": self.info.recipe,
            "versions": self.genesis.get("versions", {}),
            "tokenizer": self.tokenizer,
            "counts": self.counts,
            "languages": self.languages,
            "produced": self.files,
            "segments": self.segments,
            "unknown": [{"name": name, "why": why} for name, why in self.unknown.items()],
        }


def store_facts(store: Path, stream: str, *, with_sha256: bool) -> DataSetFacts:
    """Return what a store says of a stream; ``with_sha256`` reads all tokens of sealed segments."""
    info = read_stream(store, stream)
    numbers = partitions_in(store, stream)
    eras, live = _eras(store, stream)
    there = (stream_directory(store, stream) / TOKENIZER_FILE).exists()
    names = ("tokenizer_sha256", "vocabulary_size", "end_of_document", "dtype")
    tokenizer = {"file": TOKENIZER_FILE if there else None, **{name: info.recipe.get(name) for name in names}}
    facts = DataSetFacts(
        info=info,
        live=live,
        partitions=[_partition(store, info, number) for number in numbers],
        splits=_splits(store, info),
        eras=eras,
        segments=[one for number in numbers for one in _segments(store, info, number, with_sha256=with_sha256)],
        tokenizer=tokenizer,
        packed=StoredPack.find(store, stream),
    )
    facts.unknown |= {
        "license": "a stream does not say under which licence its documents are",
        "creator": "a stream does not say who wrote its documents",
        "citeAs": "a stream does not say how it is cited",
        "datePublished": "a store does not say whether and when it was published",
        "url": "a store does not say where it is published",
    }
    if not info.recipe:
        facts.unknown["recipe"] = "the store is of a version that did not keep it"
    return facts


def _partition(store: Path, info: StreamInfo, number: int) -> dict[str, Any]:
    """Return blocks and offsets of one partition; only with the packing `fit` they do not rise along a chain."""
    reader = open_partition(store, info.name, number)
    starts = info.values.get("genesis", {}).get("starts", [])
    first, stop = reader.first_block, reader.blocks
    looked = [np.array([first]), np.array([stop - 1])] if stop > first else []
    if info.recipe.get("packing") == "fit":
        looked = [np.arange(at, min(at + BLOCKS_AT_ONCE, stop)) for at in range(first, stop, BLOCKS_AT_ONCE)]
    rows = (reader.pieces_of(numbers).rows for numbers in looked)
    offsets = [found for one in rows if len(found := one["offset"][one["position"] != PADDING])]
    return {
        "topic": info.values["raw_topic"],
        "partition": number,
        "start_offset": starts[number] if number < len(starts) else 0,
        "first_offset": min((int(found.min()) for found in offsets), default=None),
        "last_offset": max((int(found.max()) for found in offsets), default=None),
        "first_block": reader.first_block,
        "blocks": reader.blocks,
        "counted_to_offset": None,
        "last_record_time": None,
    }


def _eras(store: Path, stream: str) -> tuple[dict[str, Any], bool]:
    try:
        reader = open_eras(store, stream)
    except StoreError:
        return {"eras": 0, "blocks": 0, "first_closed": None, "last_closed": None}, True
    count = reader.eras
    first, last = (reader.row(number).closed if count else None for number in (0, count - 1))
    return {"eras": count, "blocks": reader.blocks, "first_closed": first, "last_closed": last}, not reader.ended


def _segments(store: Path, info: StreamInfo, number: int, *, with_sha256: bool) -> list[dict[str, Any]]:
    directory = partition_directory(store, info.name, number)
    names = ("partition", "first", "blocks", "bin_bytes", "bin_crc32", "docs_crc32", "index_crc32", "chain_after")
    found = []
    for manifest in sealed_segments(directory, info, number):
        path = SegmentPaths(directory, manifest.first).tokens
        digest = None
        if with_sha256:
            with regular_file(path) as file:
                digest = file_digest(file, "sha256").hexdigest()
        told = {name: getattr(manifest, name) for name in names}
        found.append({"name": f"{number}/{path.name}", **told, "sha256": digest})
    return found


def _splits(store: Path, info: StreamInfo) -> dict[str, dict[str, Any]]:
    found = {}
    for name in streams_in(store):
        other = read_stream(store, name)
        if other.values["raw_topic"] != info.values["raw_topic"]:
            continue
        readers = [open_partition(store, name, number) for number in partitions_in(store, name)]
        blocks = sum(reader.blocks - reader.first_block for reader in readers)
        found[name] = {"split": other.recipe.get("split"), "blocks": blocks, "tokens": blocks * other.block_tokens}
    return found


async def add_broker_facts(facts: DataSetFacts, settings: Settings | None) -> None:
    """Add what the brokers tell; None asks no broker. What they do not tell is unknown, with the reason."""
    told = ("counts", "retention", "languages", "last_record_time", "produced")
    if (packed := facts.packed) is not None:
        chains, run = packed.chains(), packed.run
        _add(facts, chains, added(facts.info.name, chains))
        facts.unknown["last_record_time"] = "documents of files have no time"
        facts.files = [{"run": run.run, "begun": None, "sources": list(map(_source, run.sources))}]
        return
    if settings is None:
        facts.unknown |= dict.fromkeys(told, "no broker was asked; the totals are on the token topics alone")
        return
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            ledger = await read_ledger(settings, [facts.info.name])
            runs = await produced_runs(settings, str(facts.info.values["raw_topic"]))
    except (BrokerError, TimeoutError):
        why = f"{no_answer(settings.bootstrap_servers)}; the totals are on the token topics alone"
        facts.unknown |= dict.fromkeys(told, why)
    except (SettingsError, TopicError) as error:  # not allowed, or not there
        facts.unknown |= dict.fromkeys(told, str(error))
    else:
        _add(facts, ledger.chains, ledger.streams[0])
        if runs:
            facts.files = [_run(name, run) for name, run in sorted(runs.items())]
        else:
            facts.unknown["produced"] = "`tokenmill produce` noted no run: other clients wrote the raw topic"


def _add(facts: DataSetFacts, chains: Sequence[ChainLedger], whole: ChainLedger) -> None:
    by_partition = {chain.partition: chain for chain in chains}
    for one in facts.partitions:
        if (chain := by_partition.get(one["partition"])) is not None:
            one |= {
                "counted_to_offset": chain.offset,
                "last_record_time": chain.last_record_ms,
                "counts": chain.totals.to_dict(),
            }
    facts.counts = whole.to_dict()
    figures = whole.totals.figures
    if figures.languages:
        facts.languages = {
            name: {"documents": amount[0], "tokens": amount[1]} for name, amount in sorted(figures.languages.items())
        }
    else:
        facts.unknown["languages"] = "the recipe has no step `language`"


def _source(seen: KnownSource) -> dict[str, Any]:
    return {"name": seen.name, "bytes": seen.size, "digest": seen.digest}


def _run(name: str, run: RunStart) -> dict[str, Any]:
    return {
        "run": name,
        "begun": run.started_ms,
        "offsets": list(run.offsets.values()),
        "ends": None if run.run_end is None else list(run.run_end.ends.values()),
        "sources": list(map(_source, run.sources)),
    }


def croissant(facts: DataSetFacts) -> dict[str, Any]:
    """Return the JSON-LD of a stream whose segments have SHA-256s; the files' descriptions say how they are read."""
    unknown = "; ".join(f"{name} ({why})" for name, why in facts.unknown.items())
    told: dict[str, Any] = {
        "@context": json.loads(Path(__file__).with_name("croissant_context.json").read_bytes()),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": facts.info.name,
        "description": (
            f"Token blocks of the split {facts.info.recipe.get('split')!r} of {facts.origin}: {facts.blocks:,} blocks "
            f"of {facts.info.block_tokens} tokens, {facts.info.dtype.name}, made by TokenMill with the recipe "
            f"{facts.info.fingerprint.hex()}. Not known: {unknown or 'nothing that this format asks for'}."
        ),
        "version": "1.0.0",  # appending does not change it, and whatever would is another stream
        "isLiveDataset": facts.live,
        "prov:wasDerivedFrom": list(_derived_from(facts)),
        "prov:wasGeneratedBy": {
            "@type": "prov:Activity",
            "prov:label": f"tokenmill {facts.genesis.get('versions', {}).get('tokenmill', tokenmill.__version__)}",
            "sc:identifier": facts.info.fingerprint.hex(),
        },
        "distribution": [_file(segment, facts.info) for segment in facts.segments],
    }
    if facts.eras["first_closed"] is not None:
        told["dateCreated"] = day(facts.eras["first_closed"])
        told["dateModified"] = day(facts.eras["last_closed"])
    if facts.languages is not None:
        told["inLanguage"] = list(facts.languages)
    return told


def day(milliseconds: int) -> str:
    """Return a day as ISO 8601 has it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def _derived_from(facts: DataSetFacts) -> Iterator[dict[str, str]]:
    if facts.packed is None:
        for one in facts.partitions:
            text = "offsets {first_offset} to {last_offset} of partition {partition} of {topic}".format(**one)
            yield {"@id": f"kafka:{one['topic']}/{one['partition']}", "sc:description": text}
    for one in (source for run in facts.files or () if facts.packed for source in run["sources"]):
        yield {"@id": one["name"], "sc:description": f"{one['bytes']} bytes, xxh3 {one['digest'] or 'not known'}"}


def _file(segment: Mapping[str, Any], info: StreamInfo) -> dict[str, Any]:
    name, first, last = segment["name"], segment["first"], segment["first"] + segment["blocks"] - 1
    shape = f"numpy.memmap(file, '{info.dtype.str}').reshape(-1, {info.block_tokens})"
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "description": f"blocks {first} to {last} of partition {segment['partition']}: {shape}",
        "contentUrl": name,
        "contentSize": f"{segment['bin_bytes']} B",
        "encodingFormat": "application/octet-stream",
        "sha256": segment["sha256"],
    }


def card(facts: DataSetFacts) -> str:
    """Return the card; what is not known is left out, and listed at its end with the reason."""
    tags = ["tokenmill", "tokenized", *(["live"] if facts.live else [])]
    values: dict[str, Any] = {"pretty_name": facts.info.name, "tags": tags}
    if facts.languages is not None:
        values["language"] = list(facts.languages)
    front = [f"{name}: {canonical_json(value).decode()}" for name, value in values.items()]  # JSON, which YAML reads
    return "\n".join(["---", *front, "---", *_lines(facts)]) + "\n"


def _lines(facts: DataSetFacts) -> Iterator[str]:
    info, recipe = facts.info, facts.info.recipe
    yield from (f"# {info.name}", "")
    yield (
        f"{facts.blocks:,} blocks of {info.block_tokens:,} tokens ({facts.blocks * info.block_tokens:,} tokens, "
        f"{info.dtype.name}) of the split `{recipe.get('split')}` of {facts.origin}. "
        f"The data set {'is live: it may still grow' if facts.live else 'is complete'}."
    )
    eras = facts.eras
    if eras["first_closed"] is not None:
        number = "1 era" if eras["eras"] == 1 else f"{eras['eras']:,} eras"
        yield f"Closed from {day(eras['first_closed'])} to {day(eras['last_closed'])}, in {number}."
    yield from _table("Sources", ("topic", "partition", "first_offset", "last_offset", "blocks"), facts.partitions)
    splits = [{"stream": name, **values} for name, values in facts.splits.items()]
    yield from _table("Splits in this store", ("stream", "split", "blocks", "tokens"), splits)
    if facts.counts is not None:
        yield from _retention(facts.counts)
    if facts.languages is not None:
        rows = [{"language": name, **amount} for name, amount in facts.languages.items()]
        yield from _table("Languages", ("language", "documents", "tokens"), rows)
    produced = [source for run in facts.files or () for source in run["sources"]]
    yield from _table("Files that it came from, and their 128-bit XXH3 digests", ("name", "bytes", "digest"), produced)
    yield from _values("Tokenizer", facts.tokenizer)
    yield from _values("Recipe", {"fingerprint": info.fingerprint.hex(), **recipe})
    yield from _table("Sealed segments", ("name", "blocks", "bin_bytes", "bin_crc32", "sha256"), facts.segments)
    yield from _values("Not known", facts.unknown)


def _retention(counts: Mapping[str, Any]) -> Iterator[str]:
    retention = counts["retention"]
    left_out = retention["left_out_tokens"]
    yield from _values(
        "Documents",
        {
            "records": counts["records"],
            "kept": retention["kept"],
            "share of documents kept": f"{100 * retention['share']:.1f} %",
            "tokens": retention["tokens"],
            **({"tokens that the packing leaves out": left_out} if left_out else {}),
            "dead-lettered": sum(counts["dead_lettered"].values()),
            "other splits": counts["other_split"],
        },
    )
    yield from _table("Left out", ("step", "reason", "documents", "text_bytes"), retention["funnel"])


def _values(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(title, ("what", "value"), [{"what": name, "value": value} for name, value in values.items()])


def _table(title: str, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    if found := [[_cell(row.get(column)) for column in columns] for row in rows]:
        yield from ("", f"## {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}")
        yield from (f"| {' | '.join(row)} |" for row in found)


def _cell(value: Any) -> str:
    """Return a value as text that no table, link or markup is made of, not even of an address, which readers link."""
    if value is None:
        return ""
    text = f"{value:,}" if type(value) is int else value if isinstance(value, str) else canonical_json(value).decode()
    text = "".join(f"\\{c}" if c in "\\`*_{}[]<>|#&~@!" else " " if c in "\r\n" else c for c in text)
    return text.replace("://", "\\://").replace("www.", "www\\.")
