"""``tokenmill inspect``, ``tail`` and ``trace``: what streams and files hold, and which records were in a step."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tokenmill.bucket.objects import address_of
from tokenmill.errors import InputError
from tokenmill.packings import packing_in_words
from tokenmill.samples import tracing as samples
from tokenmill.samples.trainable import read_any_state, read_state

from ..funnel import beginning_of
from ..settings import Settings
from ..tables import ShownTable, pairs
from ..tools.inspect import reports, tracing
from .options import All, AsJson, OneStream, RawTopic, argument, command, open_store, option
from .output import LINE_CHARACTERS, ProgressLine, count, moment_of, say, show, show_json, show_table, size

SHOWN_TOKENS = 12  # ids of a document, in its line; --json has all
WORDS = {"filtered": "filtered out", "dead_lettered": "dead letter", "other_split": "of no split"}
WORDS["unjudged"] = "not judged"

Partition = Annotated[int, argument("Number of the partition.")]


@command("inspect stream", "tokenmill inspect stream raw-text.train", shown=("bootstrap_servers", "store"), bucket=True)
def stream(settings: Settings, name: OneStream, *, as_json: AsJson = False) -> None:
    """Print a stream's settings, and how far its chains are in the token topic and in the store."""
    report = asyncio.run(reports.inspect_stream(settings, name, settings.store))
    if as_json:
        show_json(report)
        return
    show_table(pairs(_stream_facts(report)))
    show_table(_chains_table(report["chains"]))
    for chain in report["chains"]:
        if chain["sample"]:
            sample = beginning_of(chain["sample"], LINE_CHARACTERS)
            show(f"{name}/{chain['partition']} block {chain['blocks'] - 1}: {sample!r}")


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
        path = open_store(Path(parts[0])).joinpath(*parts[1:])
    found = reports.inspect_segments(path)
    if as_json:
        show_json(found)
        return
    for report in found:
        show_table(pairs(_segment_facts(**report)))
        if report["sample"]:
            show(f"block {report['first']}: {beginning_of(report['sample'], LINE_CHARACTERS)!r}")


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
    values = asyncio.run(reports.inspect_message(settings, topic, partition, offset))
    if as_json:
        show_json(values)
        return
    header: dict[str, Any] = values.pop("message", {})
    blocks: list[dict[str, Any]] = header.pop("blocks", [])
    for domain, found in values.pop("seen_before", {}).items():
        values[f"seen before in {domain}"] = _seen_words(found)
    show_table(pairs({**values, **header}))
    for found in blocks:
        show(f"block {found['block']}: {beginning_of(found['sample'] or '', LINE_CHARACTERS)!r}")
        for piece in found["pieces"]:
            name = f"{_document(piece.get('id'), piece['position'])},"
            named = name if piece["position"] >= 0 else "padding, by the record at"
            show(f"  from token {piece['start']}: {named} offset {piece['offset']}")


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
    trace = asyncio.run(tracing.trace_block(settings, name, partition, number, store=settings.store))
    if as_json:
        show_json(asdict(trace))
        return
    place = f"block {trace.block} of {trace.stream}/{trace.partition}"
    show(f"{place}: {count(trace.tokens, 'token')}, {trace.where}")
    show(f"  {beginning_of(trace.text, LINE_CHARACTERS)!r}")
    for piece in trace.pieces:
        for line in _piece_lines(piece):
            show(line)
    if trace.note:
        say(trace.note)


def _seen_words(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not judged"
    if found["reason"]:
        return f"{found['reason']}: {found['detail']}"
    kinds = ", ".join(f"{number:,} {reason}" for reason, number in sorted(found["again"].items()))
    return f"no; seen {count(sum(found['again'].values()), 'time')} since ({kinds})" if kinds else "no, and not since"


def _piece_lines(piece: tracing.TracedPiece) -> list[str]:
    place = f"{piece.topic}[{piece.partition}] offset {piece.offset}"
    if piece.padding:
        return [f"tokens {piece.start} to {piece.stop - 1}: padding, by the record at {place}"]
    lines = [f"tokens {piece.start} to {piece.stop - 1}: {_document(piece.id, piece.position)}, {place}"]
    if piece.record is not None:
        text = beginning_of(piece.record.text, LINE_CHARACTERS)
        lines.append(f"  record of {moment_of(piece.record.timestamp)}, {size(piece.record.value_bytes)}: {text!r}")
    return lines


def _document(name: str | int | None, position: int) -> str:
    return f"{'a document' if name is None else f'document {name!r}'} from its token {position}"


def _stream_facts(report: Mapping[str, Any]) -> dict[str, Any]:
    unusual = {"splits", "steps", "raw_topic", "tokenizer_sha256", "probe", "block_tokens", "dtype", "format"}
    unusual |= {"packing", "packing_parameters", "segment_tokens"}
    settings = report["settings"]
    return {
        "stream": report["name"],
        "raw topic": report["raw_topic"],
        "fingerprint": report["fingerprint"],
        "tokenizer": report["tokenizer"],
        "block": f"{report['block_tokens']} tokens of {report['dtype']}",
        "packing": packing_in_words(settings["packing"], settings.get("packing_parameters", {})),
        "segment": count(report["segment_blocks"], "block"),
        "settings": ", ".join(f"{n}={v}" for n, v in settings.items() if n not in unusual),
        "splits": ", ".join(f"{name}:{shards}" for name, shards in settings["splits"]),
        "versions": ", ".join(f"{n} {v}" for n, v in report["versions"].items()),
        "skip list": report["skips"] or "empty",
        "ignore list": report["ignored"] or "empty",
        "in all": f"{count(report['blocks'], 'block')}, {count(report['tokens'], 'token')}",
    }


def _chains_table(chains: Iterable[Mapping[str, Any]]) -> ShownTable:
    columns = ("partition", "source", "milled to", "messages", "records", "kept", "blocks", "in store", "segments")
    rows = []
    for chain in chains:
        (first, end), tokens, held = chain["raw_range"], chain["token_range"], chain["store_blocks"]
        source = f"{first:,} to {end - 1:,}" if end > first else "empty"
        messages = "-" if tokens is None else tokens[1] - tokens[0]
        counts = (chain["totals"].get("records", 0), chain["totals"].get("kept", 0), chain["blocks"])
        stored = "-" if held is None else f"{held:,}"
        if chain["store_first"]:
            stored = f"{chain['store_first']:,} to {held - 1:,}"
        segments = "-" if held is None else chain["segments"]
        rows.append((chain["partition"], source, chain["next_offset"], messages, *counts, stored, segments))
    return ShownTable(columns, rows)


def _segment_facts(first: int, blocks: int, offsets: tuple[int, int] | None, **more: Any) -> dict[str, Any]:
    return {
        "segment": more["path"],
        "chain": f"{more['stream']}/{more['partition']}",
        "blocks": f"{first} to {first + blocks - 1}" if blocks else "none yet",
        "state": "sealed" if more["sealed"] else "growing",
        "block": f"{more['block_tokens']} tokens of {more['dtype']}",
        "documents": f"{more['documents']:,} begin here",
        "offsets": f"{offsets[0]} to {offsets[1]}" if offsets else None,
        "bytes": f"{size(more['token_bytes'])} of tokens, {size(more['document_bytes'])} of document table",
        "fingerprint": more["fingerprint"],
        "chain before": more["chain_before"],
        "chain after": more["chain_after"],
    }


@command(
    "tail", "tokenmill tail raw-text", "tokenmill tail raw-text --follow", "tokenmill tail raw-text --json --last 100"
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
    async with aclosing(tracing.passing_records(settings, topic, last, follow=follow)) as passing:
        async for found in passing:
            if as_json:
                show_json(asdict(found) | {"place": found.place._asdict()})
            for line in _lines_of(found) if not as_json else ():
                show(line)
            shown += 1
            if shown == limit:
                return


def _lines_of(found: tracing.PassingRecord) -> Iterator[str]:
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


SHOWN_USES = 10  # samples of a record; more are shown where all is asked for


@command(
    "trace",
    "tokenmill trace --store store --state state.json --step 12345 --text",
    "tokenmill trace --store store --state state.json --record 0 4711",
    "tokenmill trace --store store --state state.json --document article-17 --json",
    shown=("store",),
    bucket=True,
)
def trace_command(
    settings: Settings,
    *,
    state: Annotated[Path, option("What state_dict() of Batches returned, as JSON; it names the stream, too.", "FILE")],
    step: Annotated[int | None, option("The samples of this step.", "N")] = None,
    sample: Annotated[int | None, option("This sample of the run's sequence.", "N")] = None,
    block: Annotated[tuple[int, int] | None, option("The samples of this block.", "PARTITION NUMBER")] = None,
    record: Annotated[
        tuple[int, int] | None, option("The samples with tokens of this record.", "PARTITION OFFSET")
    ] = None,
    document: Annotated[
        str | None, option("The same of all records with this id; reads all document tables.", "ID")
    ] = None,
    of: Annotated[
        str | None, option("With the state of a mixture: this stream of it, whose samples count as its steps.", "NAME")
    ] = None,
    store_of: Annotated[
        list[str] | None,
        option(
            "With the state of a mixture: the store of this stream, if it is in another one; may be given again.",
            "NAME=DIRECTORY",
        ),
    ] = None,
    text: Annotated[bool, option("Ask the brokers for the records, and print their text.")] = False,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Show which documents were in a step or sample of a run, or in which steps a block, record or document was.

    Reads the store alone; no broker is asked, except with --text. A state of a later time knows all earlier steps,
    whatever the batch sizes were; rank r of batches of b had the rows of the global batch from r * b on.
    """
    if sum(asked is not None for asked in (step, sample, block, record, document)) != 1:
        raise InputError("give one of --step, --sample, --block, --record and --document")
    saved = read_any_state(state)
    stores = _stores(store_of or (), mixture=samples.is_mixture(saved))
    if samples.is_mixture(saved) and of is None:
        if step is None or text:
            raise InputError(
                "the state is of a mixture: give --step, without --text, or the stream that you mean (--of NAME)"
            )
        _show_step_of_mixture(settings, samples.MixtureTracer(settings.store, saved, stores), step, as_json=as_json)
        return
    if of is not None and not samples.is_mixture(saved):
        raise InputError("--of names a stream of a mixture, and this is a state of Batches: leave it out")
    store = stores.get(of or "", settings.store)
    tracer = samples.Tracer(store, read_state(state) if of is None else samples.part_of(saved, of))
    if tracer.doubt is not None:
        say(f"warning: {tracer.doubt}")
    printer = _Printer(settings, tracer.position.sequence.stream, text=text, as_json=as_json, everything=everything)
    if step is not None:
        printer.show_samples({"step": step}, list(tracer.step(step)))
    elif sample is not None:
        printer.show_samples({"sample": sample}, [tracer.sample(sample)])
    elif block is not None:
        printer.show_block(block, tracer.block(*block))
    elif record is not None:
        printer.show_records({"record": record}, [tracer.record(*record)])
    else:
        found = [tracer.record(*place) for place in _scan(tracer, document or "")]
        printer.show_records({"document": document}, found)


def _stores(given: Iterable[str], *, mixture: bool) -> dict[str, Path]:
    stores = {}
    for one in given:
        name, equals, directory = one.partition("=")
        if not mixture or not equals or not name or not directory:
            advice = "give NAME=DIRECTORY, with the name of a stream in the mixture" if mixture else "give --store"
            raise InputError(f"--store-of is {one!r}: {advice}")
        stores[name] = open_store(Path(directory))
    return stores


def _show_step_of_mixture(settings: Settings, tracer: samples.MixtureTracer, step: int, *, as_json: bool) -> None:
    for name, doubt in tracer.doubts.items():
        say(f"warning: {name}: {doubt}")
    found = list(tracer.step(step))
    if as_json:
        show_json({"step": step, "samples": [{"of": name, **asdict(traced)} for name, traced in found]})
        return
    printers: dict[str, _Printer] = {}
    for name, traced in found:
        printer = printers.setdefault(name, _Printer(settings, tracer.stream_of(name)))
        show(f"{name}: {_use(traced.use)}: {_view(traced)}")
        printer.show_sources(traced.sources)


def _scan(tracer: samples.Tracer, wanted: str) -> list[tracing.Place]:
    found: list[tracing.Place] = []
    with ProgressLine("searching") as line:
        for done, total, places in tracer.documents(wanted):
            found += places
            told = f"searched {count(done, 'block')} of {total:,}, {count(len(found), 'record')} found"
            line.show(told, done, total)
    return found


@dataclass
class _Printer:
    settings: Settings
    stream: str
    text: bool = False
    as_json: bool = False
    everything: bool = True
    texts: dict[tracing.Place, tracing.RecordText] = field(default_factory=dict)

    def show_samples(self, asked: dict[str, Any], found: list[samples.TracedSample]) -> None:
        self._ask(source for one in found for source in one.sources)
        if self.as_json:
            self._show_json(asked, samples=[asdict(one) for one in found])
            return
        if "step" in asked:
            first, last = found[0].use.sample, found[-1].use.sample
            show(f"step {asked['step']} of {self.stream}: samples {first} to {last}")
        for one in found:
            show(f"{_use(one.use)}: {_view(one)}")
            self.show_sources(one.sources)

    def show_block(self, place: tracing.Place, views: list[samples.TracedView]) -> None:
        self._ask(source for view in views for source in view.sources)
        if self.as_json:
            self._show_json({"block": place}, views=[asdict(view) for view in views])
            return
        for view in views:
            self._show_view(view)

    def show_records(self, asked: dict[str, Any], found: list[samples.TracedRecord]) -> None:
        self._ask(source for one in found for view in one.views for source in view.sources)
        lost = {n: (one.partition, one.offset) for n, one in enumerate(found) if self.text and not one.views}
        outcomes = {n: asyncio.run(tracing.outcome_of(self.settings, self.stream, place)) for n, place in lost.items()}
        if self.as_json:
            records = [
                {**asdict(one), "verdict": one.verdict, "outcome": asdict(outcomes[n]) if n in outcomes else None}
                for n, one in enumerate(found)
            ]
            self._show_json(asked, records=records)
            return
        if not found:
            say(f"no document in the store has the id {asked['document']!r}")
        for number, one in enumerate(found):
            show(f"{one.topic}[{one.partition}] offset {one.offset}: {one.verdict}")
            if (outcome := outcomes.get(number)) is not None:
                show(f"  by the raw topic: {outcome}")
            if self.everything or self.text:
                for view in one.views:
                    self._show_view(view)
                continue
            uses = [(view, use) for view in one.views for use in view.uses]
            for view, use in uses[:SHOWN_USES]:
                show(f"  {_use(use)}: {_view(view)}")
            if len(uses) > SHOWN_USES:
                show(f"  and {len(uses) - SHOWN_USES:,} more samples; --all shows them")

    def _ask(self, sources: Iterable[samples.Source]) -> None:
        if self.text:
            places = [(source.partition, source.offset) for source in sources]
            self.texts = asyncio.run(tracing.record_texts(self.settings, self.stream, places))

    def _show_json(self, asked: dict[str, Any], **found: Any) -> None:
        texts = [{"partition": p, "offset": o, **asdict(text)} for (p, o), text in self.texts.items()]
        show_json({"stream": self.stream, **asked, **found, **({"texts": texts} if self.text else {})})

    def _show_view(self, view: samples.TracedView) -> None:
        era = "in no era yet" if view.era is None else f"era {view.era}"
        show(f"{_view(view)}, {era}")
        for use in view.uses:
            show(f"  {_use(use)}")
        self.show_sources(view.sources)

    def show_sources(self, sources: list[samples.Source]) -> None:
        for source in sources:
            found = _document(source.id, source.position)
            place = f"{source.topic}[{source.partition}] offset {source.offset}"
            show(f"  tokens {source.start} to {source.stop - 1}: {found}, {place}")
            text = self.texts.get((source.partition, source.offset))
            if text is not None:
                show(f"    {beginning_of(text.text, LINE_CHARACTERS)!r}")
            elif self.text:
                show("    (the raw topic no longer holds this record)")


def _use(use: samples.Use) -> str:
    step = "in no step as of this state" if use.step is None else f"step {use.step} row {use.row}"
    passed = f", pass {use.passed}" if use.passed else ""
    return f"sample {use.sample}, {step}{passed}, era {use.era} position {use.position}"


def _view(found: samples.TracedSample | samples.TracedView) -> str:
    return f"partition {found.partition} block {found.block} view {found.view}"
