"""``tokenmill trace``: which records were in a training step, and which steps a record was in."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from tokenmill.bucket.cache import open_temporarily
from tokenmill.errors import InputError
from tokenmill.samples.tracing import (
    MixtureTracer,
    Source,
    TracedRecord,
    TracedSample,
    TracedView,
    Tracer,
    Use,
    is_mixture,
    part_of,
)
from tokenmill.samples.trainable import read_any_state, read_state

from ..funnel.retention import beginning_of
from ..settings import Settings
from ..tools.inspect.tracing import Place, RecordText, outcome_of, record_texts
from .options import command, option
from .output import LINE_CHARACTERS, All, AsJson, count, say, show, show_json
from .progress import ProgressLine

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
    state: Annotated[
        Path, option("What state_dict() of Batches returned, as JSON; it names the stream, too.", "FILE", "--state")
    ],
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
        str | None,
        option("With the state of a mixture: this stream of it, whose samples count as its steps.", "NAME"),
    ] = None,
    store_of: Annotated[
        list[str] | None,
        option(
            "With the state of a mixture: the store of this stream, if it is in another one; may be given again.",
            "NAME=DIRECTORY",
        ),
    ] = None,
    text: Annotated[bool, option("Ask the brokers for the records, and print their text.", None, "--text")] = False,
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
    stores = _stores(store_of or (), mixture=is_mixture(saved))
    if is_mixture(saved) and of is None:
        if step is None or text:
            raise InputError(
                "the state is of a mixture: give --step, without --text, or the stream that you mean (--of NAME)"
            )
        _show_step_of_mixture(settings, MixtureTracer(settings.store, saved, stores), step, as_json=as_json)
        return
    if of is not None and not is_mixture(saved):
        raise InputError("--of names a stream of a mixture, and this is a state of Batches: leave it out")
    store = stores.get(of or "", settings.store)
    tracer = Tracer(store, read_state(state) if of is None else part_of(saved, of))
    if tracer.doubt is not None:
        say(f"warning: {tracer.doubt}")
    stream = tracer.position.sequence.stream
    printer = _Printer(settings, stream, text=text, as_json=as_json, everything=everything)
    if step is not None:
        printer.samples({"step": step}, list(tracer.step(step)))
    elif sample is not None:
        printer.samples({"sample": sample}, [tracer.sample(sample)])
    elif block is not None:
        printer.block(block, tracer.block(*block))
    elif record is not None:
        printer.records({"record": record}, [tracer.record(*record)])
    else:
        found = [tracer.record(*place) for place in _scan(tracer, document or "")]
        printer.records({"document": document}, found)


def _stores(given: Iterable[str], *, mixture: bool) -> dict[str, Path]:
    """Return the stores of single streams of a mixture; raises InputError where this is none, or names nothing."""
    stores = {}
    for one in given:
        name, equals, directory = one.partition("=")
        if not mixture or not equals or not name or not directory:
            advice = "give NAME=DIRECTORY, with the name of a stream in the mixture" if mixture else "give --store"
            raise InputError(f"--store-of is {one!r}: {advice}")
        stores[name] = open_temporarily(Path(directory))
    return stores


def _show_step_of_mixture(settings: Settings, tracer: MixtureTracer, step: int, *, as_json: bool) -> None:
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


def _scan(tracer: Tracer, wanted: str) -> list[Place]:
    found: list[Place] = []
    with ProgressLine("searching") as line:
        for done, total, places in tracer.documents(wanted):
            found += places
            told = f"searched {count(done, 'block')} of {total:,}, {count(len(found), 'record')} found"
            line.show(told, done, total)
    return found


class _Printer:
    """Prints traces, as lines or as JSON, with what the brokers know where that was asked for."""

    def __init__(
        self, settings: Settings, stream: str, *, text: bool = False, as_json: bool = False, everything: bool = True
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._everything = everything
        self._text = text
        self._json = as_json
        self._texts: dict[Place, RecordText] = {}

    def samples(self, asked: dict[str, Any], found: list[TracedSample]) -> None:
        """Print the samples of a step, or one."""
        self._ask(source for one in found for source in one.sources)
        if self._json:
            self._show_json(asked, samples=[asdict(one) for one in found])
            return
        if "step" in asked:
            first, last = found[0].use.sample, found[-1].use.sample
            show(f"step {asked['step']} of {self._stream}: samples {first} to {last}")
        for one in found:
            show(f"{_use(one.use)}: {_view(one)}")
            self.show_sources(one.sources)

    def block(self, place: Place, views: list[TracedView]) -> None:
        """Print where the views of a block come in the sequence."""
        self._ask(source for view in views for source in view.sources)
        if self._json:
            self._show_json({"block": place}, views=[asdict(view) for view in views])
            return
        for view in views:
            self._show_view(view)

    def records(self, asked: dict[str, Any], found: list[TracedRecord]) -> None:
        """Print where the tokens of records come in the sequence."""
        self._ask(source for one in found for view in one.views for source in view.sources)
        lost = {n: (one.partition, one.offset) for n, one in enumerate(found) if self._text and not one.views}
        outcomes = {n: asyncio.run(outcome_of(self._settings, self._stream, place)) for n, place in lost.items()}
        if self._json:
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
            if self._everything or self._text:
                for view in one.views:
                    self._show_view(view)
                continue
            uses = [(view, use) for view in one.views for use in view.uses]
            for view, use in uses[:SHOWN_USES]:
                show(f"  {_use(use)}: {_view(view)}")
            if len(uses) > SHOWN_USES:
                show(f"  and {len(uses) - SHOWN_USES:,} more samples; --all shows them")

    def _ask(self, sources: Iterable[Source]) -> None:
        if self._text:
            places = [(source.partition, source.offset) for source in sources]
            self._texts = asyncio.run(record_texts(self._settings, self._stream, places))

    def _show_json(self, asked: dict[str, Any], **found: Any) -> None:
        texts = [{"partition": p, "offset": o, **asdict(text)} for (p, o), text in self._texts.items()]
        show_json({"stream": self._stream, **asked, **found, **({"texts": texts} if self._text else {})})

    def _show_view(self, view: TracedView) -> None:
        era = "in no era yet" if view.era is None else f"era {view.era}"
        show(f"{_view(view)}, {era}")
        for use in view.uses:
            show(f"  {_use(use)}")
        self.show_sources(view.sources)

    def show_sources(self, sources: list[Source]) -> None:
        """Print the documents of a sample."""
        for source in sources:
            name = f"document {source.id!r}" if source.id is not None else "a document"
            place = f"{source.topic}[{source.partition}] offset {source.offset}"
            show(f"  tokens {source.start} to {source.stop - 1}: {name} from its token {source.position}, {place}")
            text = self._texts.get((source.partition, source.offset))
            if text is not None:
                show(f"    {beginning_of(text.text, LINE_CHARACTERS)!r}")
            elif self._text:
                show("    (the raw topic no longer holds this record)")


def _use(use: Use) -> str:
    step = "in no step as of this state" if use.step is None else f"step {use.step} row {use.row}"
    passed = f", pass {use.passed}" if use.passed else ""
    return f"sample {use.sample}, {step}{passed}, era {use.era} position {use.position}"


def _view(found: TracedSample | TracedView) -> str:
    return f"partition {found.partition} block {found.block} view {found.view}"
