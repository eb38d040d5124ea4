"""``tokenmill inspect``: what a stream, a segment, a message or a block holds; ``tail``: documents as they pass."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from tokenmill.bucket.cache import open_temporarily
from tokenmill.bucket.objects import address_of
from tokenmill.packings import packing_in_words

from ..funnel.retention import beginning_of
from ..settings import Settings
from ..tables import ShownTable, pairs
from ..tools.inspect.reports import (
    ChainReport,
    SegmentReport,
    StreamReport,
    inspect_message,
    inspect_segments,
    inspect_stream,
)
from ..tools.inspect.tracing import PassingRecord, TracedPiece, passing_records, trace_block
from .options import OneStream, RawTopic, argument, command, option
from .output import LINE_CHARACTERS, AsJson, count, moment_of, say, show, show_json, show_table, size

SHOWN_TOKENS = 12  # ids of a document, in its line; --json has all
WORDS = {"filtered": "filtered out", "dead_lettered": "dead letter", "other_split": "of no split"}
WORDS["unjudged"] = "not judged"

Partition = Annotated[int, argument("Number of the partition.")]


@command("inspect stream", "tokenmill inspect stream raw-text.train", shown=("bootstrap_servers", "store"), bucket=True)
def stream(settings: Settings, name: OneStream, *, as_json: AsJson = False) -> None:
    """Print a stream's settings, and how far its chains are in the token topic and in the store."""
    report = asyncio.run(inspect_stream(settings, name, settings.store))
    if as_json:
        show_json(report.to_dict())
        return
    show_table(pairs(stream_facts(report)))
    show_table(chains_table(report))
    for chain in report.chains:
        if chain.sample:
            show(f"{name}/{chain.partition} block {chain.blocks - 1}: {beginning_of(chain.sample, LINE_CHARACTERS)!r}")


@command(
    "inspect segment",
    "tokenmill inspect segment store/raw-text.train/0",
    "tokenmill inspect segment store/raw-text.train/0/000000000000.bin",
)
def segment(
    path: Annotated[Path, argument("A segment's .bin, or a partition's directory; also in a bucket.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Print what a segment of a store, or each of a partition, holds; all its blocks' checksums are checked.

    Needs no broker.
    """
    if (address := address_of(path)) is not None:
        parts = address.rsplit("/", 3 if path.suffix else 2)
        path = open_temporarily(Path(parts[0])).joinpath(*parts[1:])
    reports = inspect_segments(path)
    if as_json:
        show_json(list(map(asdict, reports)))
        return
    for report in reports:
        show_table(pairs(segment_facts(report)))
        if report.sample:
            show(f"block {report.first}: {beginning_of(report.sample, LINE_CHARACTERS)!r}")


@command("inspect message", "tokenmill inspect message tokens.raw-text.train 0 0")
def message(
    settings: Settings,
    topic: Annotated[str, argument("Any topic.", "TOPIC")],
    partition: Partition,
    offset: Annotated[int, argument("Offset of the message.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Print what is at an offset: blocks with their documents, a carry, a dead letter, or any other record."""
    values = asyncio.run(inspect_message(settings, topic, partition, offset))
    if as_json:
        show_json(values)
        return
    header: dict[str, Any] = values.pop("message", {})
    blocks: list[dict[str, Any]] = header.pop("blocks", [])
    for domain, found in values.pop("seen_before", {}).items():
        values[f"seen before in {domain}"] = seen_words(found)
    show_table(pairs({**values, **header}))
    for found in blocks:
        show(f"block {found['block']}: {beginning_of(found['sample'] or '', LINE_CHARACTERS)!r}")
        for piece in found["pieces"]:
            show(f"  from token {piece['start']}: {piece_name(piece)}")


@command(
    "inspect block", "tokenmill inspect block raw-text.train 0 0", shown=("bootstrap_servers", "store"), bucket=True
)
def block(
    settings: Settings,
    name: OneStream,
    partition: Partition,
    number: Annotated[int, argument("Number of the block.", "BLOCK")],
    *,
    as_json: AsJson = False,
) -> None:
    """Follow one block, from the store or else from the token topic, back to the Kafka records that it came from."""
    trace = asyncio.run(trace_block(settings, name, partition, number, store=settings.store))
    if as_json:
        show_json(asdict(trace))
        return
    place = f"block {trace.block} of {trace.stream}/{trace.partition}"
    show(f"{place}: {count(trace.tokens, 'token')}, {trace.where}")
    show(f"  {beginning_of(trace.text, LINE_CHARACTERS)!r}")
    for piece in trace.pieces:
        for line in piece_lines(piece):
            show(line)
    if trace.note:
        say(trace.note)


def seen_words(found: Mapping[str, Any] | None) -> str:
    """Return whether a document was seen before, and how often it came again."""
    if found is None:
        return "not judged"
    if found["reason"]:
        return f"{found['reason']}: {found['detail']}"
    kinds = ", ".join(f"{number:,} {reason}" for reason, number in sorted(found["again"].items()))
    return f"no; seen {count(sum(found['again'].values()), 'time')} since ({kinds})" if kinds else "no, and not since"


def piece_lines(piece: TracedPiece) -> list[str]:
    """Return where a piece came from, and the beginning of its record's text."""
    place = f"{piece.topic}[{piece.partition}] offset {piece.offset}"
    if piece.padding:
        return [f"tokens {piece.start} to {piece.stop - 1}: padding, by the record at {place}"]
    name = f"document {piece.id!r}" if piece.id is not None else "a document"
    lines = [f"tokens {piece.start} to {piece.stop - 1}: {name} from its token {piece.position}, {place}"]
    if piece.record is not None:
        text = beginning_of(piece.record.text, LINE_CHARACTERS)
        lines.append(f"  record of {moment_of(piece.record.timestamp)}, {size(piece.record.value_bytes)}: {text!r}")
    return lines


def piece_name(piece: dict[str, Any]) -> str:
    """Return where a piece of a message came from."""
    if piece["position"] < 0:
        return f"padding, by the record at offset {piece['offset']}"
    name = f"document {piece['id']!r}" if "id" in piece else "a document"
    return f"{name} from its token {piece['position']}, offset {piece['offset']}"


def stream_facts(report: StreamReport) -> dict[str, Any]:
    """Return what is said of a stream beside its chains."""
    unusual = {"splits", "steps", "raw_topic", "tokenizer_sha256", "probe", "block_tokens", "dtype", "format"}
    unusual |= {"packing", "packing_parameters", "segment_tokens"}
    return {
        "stream": report.name,
        "raw topic": report.raw_topic,
        "fingerprint": report.fingerprint,
        "tokenizer": report.tokenizer,
        "block": f"{report.block_tokens} tokens of {report.dtype}",
        "packing": packing_in_words(report.settings["packing"], report.settings.get("packing_parameters", {})),
        "segment": count(report.segment_blocks, "block"),
        "settings": ", ".join(f"{n}={v}" for n, v in report.settings.items() if n not in unusual),
        "splits": ", ".join(f"{name}:{shards}" for name, shards in report.settings["splits"]),
        "versions": ", ".join(f"{n} {v}" for n, v in report.versions.items()),
        "skip list": report.skips or "empty",
        "ignore list": report.ignored or "empty",
        "in all": f"{count(report.totals['blocks'], 'block')}, {count(report.totals['tokens'], 'token')}",
    }


def chains_table(report: StreamReport) -> ShownTable:
    """Return one row for each chain."""
    columns = ("partition", "source", "milled to", "messages", "records", "kept", "blocks", "in store", "segments")
    rows = []
    for chain in report.chains:
        first, end = chain.raw_range
        held = ("-", "-") if chain.store_blocks is None else (_held(chain), chain.segments)
        source = f"{first:,} to {end - 1:,}" if end > first else "empty"
        messages = "-" if chain.token_range is None else chain.token_range[1] - chain.token_range[0]
        counts = (chain.totals.get("records", 0), chain.totals.get("kept", 0), chain.blocks)
        rows.append((chain.partition, source, chain.next_offset, messages, *counts, *held))
    return ShownTable(columns, rows)


def _held(chain: ChainReport) -> str:
    """Return what the store holds: a number of blocks, or, where older ones are retired, which."""
    end = chain.store_blocks or 0
    return f"{chain.store_first:,} to {end - 1:,}" if chain.store_first else f"{end:,}"


def segment_facts(report: SegmentReport) -> dict[str, Any]:
    """Return what is said of a segment."""
    return {
        "segment": report.path,
        "chain": f"{report.stream}/{report.partition}",
        "blocks": f"{report.first} to {report.first + report.blocks - 1}" if report.blocks else "none yet",
        "state": "sealed" if report.sealed else "growing",
        "block": f"{report.block_tokens} tokens of {report.dtype}",
        "documents": f"{report.documents:,} begin here",
        "offsets": f"{report.offsets[0]} to {report.offsets[1]}" if report.offsets else None,
        "bytes": f"{size(report.token_bytes)} of tokens, {size(report.document_bytes)} of document table",
        "fingerprint": report.fingerprint,
        "chain before": report.chain_before,
        "chain after": report.chain_after,
    }


@command(
    "tail",
    "tokenmill tail raw-text",
    "tokenmill tail raw-text --follow",
    "tokenmill tail raw-text --json --last 100",
)
def tail_command(
    settings: Settings,
    topic: RawTopic,
    *,
    last: Annotated[int, option("How many of each partition to begin with.", "N", min=0)] = 5,
    follow: Annotated[bool, option("Go on with what comes, until Ctrl-C or --limit.", None, "--follow", "-f")] = False,
    limit: Annotated[int | None, option("Stop after this many.", "N", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest documents of a raw topic, and what becomes of each: kept, filtered out, or a dead letter.

    With the reason, or the token ids of a kept document. Nothing is written. Outcomes follow the recipe of the topic's
    streams, also for records that no mill has read yet; of duplicates, what the sequencer has said by now.
    """
    asyncio.run(_tail(settings, topic, last, follow=follow, limit=limit, as_json=as_json))


async def _tail(settings: Settings, topic: str, last: int, *, follow: bool, limit: int | None, as_json: bool) -> None:
    shown = 0
    async with aclosing(passing_records(settings, topic, last, follow=follow)) as passing:
        async for found in passing:
            if as_json:
                show_json(asdict(found) | {"place": found.place._asdict()})
            for line in lines_of(found) if not as_json else ():
                show(line)
            shown += 1
            if shown == limit:
                return


def lines_of(found: PassingRecord) -> Iterator[str]:
    """Yield the place of a record and what becomes of it; below, the beginning of its text, and of its ids."""
    outcome, record = found.outcome, found.record
    what = WORDS.get(outcome.kind, outcome.kind)
    split = f" ({outcome.split})" if outcome.split else ""
    told = f": {outcome.reason}" if outcome.reason and outcome.kind != "other_split" else ""
    tokens = f", {count(len(outcome.tokens), 'token')}" if outcome.tokens else ""
    moment = moment_of(record.timestamp)
    time = f"{moment}  " if moment else ""
    yield f"{time}{found.place}  {what}{split}{told}{tokens}, {size(record.value_bytes)}"
    if record.text:
        yield f"  {beginning_of(record.text, LINE_CHARACTERS)!r}"
    if outcome.tokens:
        more = " …" if len(outcome.tokens) > SHOWN_TOKENS else ""
        yield f"  {' '.join(map(str, outcome.tokens[:SHOWN_TOKENS]))}{more}"
