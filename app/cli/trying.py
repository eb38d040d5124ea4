"""``tokenmill try``, ``tokenizer`` and ``train-tokenizer``: what a recipe makes of files, before any is in Kafka."""

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tokenmill.errors import EngineError

from ..funnel import TriedDocument, length_bars, terminal_bars
from ..milling.tokenizers import load_tokenizer
from ..settings import Settings
from ..sources import Item, Reading, Refused, read_items, shape_for
from ..tables import ShownTable
from ..tasks import until_interrupted
from ..tools.tokenizers import report_on, train_tokenizer
from ..tools.trial import TrialProgress, TrialResult, TrialRun, plan_trial, trial_settings
from . import reading_options as files
from .options import All, AsJson, argument, command, option, require_file
from .output import (
    EscapingConsole,
    ProgressLine,
    count,
    say,
    show,
    show_examples,
    show_figures,
    show_json,
    show_table,
    size,
)

EXACT_BELOW: Final = 100
"""MB a second; a faster stage is shown without a decimal."""


@command(
    "try",
    "tokenmill try corpus.jsonl --profile fineweb-2024",
    "tokenmill try 'pages/*.warc.gz' --steps language,gopher --limit 10000",
    "tokenmill try notes/ --json > funnel.json",
    shown=("steps", "tokenizer", "decode", "text_fields"),
)
@files.with_reading(*files.UNUSED)
def try_command(
    settings: Settings,
    paths: files.Paths,
    *,
    choice: files.SourceChoice,
    profile: Annotated[str | None, option("The steps of this profile, in place of the setting steps.", "NAME")] = None,
    shown: Annotated[
        int | None, option("Documents shown of each reason.", "N", "--examples", min=0, max=100)  # held in memory
    ] = None,
    everything: All = False,
    topic: Annotated[
        str | None, option("The raw topic whose settings are tried. Default: the first of raw_topics.", "NAME")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try steps on files: what is kept, what drops the rest, and examples of it. No Kafka is needed.

    Files are read as `tokenmill produce` reads them, and documents are filtered by the settings, as a mill does it. So
    the figures are those that `tokenmill ledger` shows of the same files. Examples are chosen evenly, with the numbers
    that decided. Ctrl-C ends it with the figures so far.
    """
    settings = trial_settings(settings, topic or settings.raw_topics[0], profile)
    settings = choice.carried(settings, settings.raw_topics[0])
    line = _TrialProgressLine("opening the steps")
    with choice.opened(settings, settings.raw_topics[0], paths) as (_, sources), line as report:
        plan, trial = plan_trial(settings, (5 if everything or as_json else 1) if shown is None else shown)
        if plan.tokenizer.content is None:
            report.say("tokens are bytes; for those of a tokenizer: --tokenizer")
        if plan.stages.engine_refused:
            report.say(f"the tokenizer's engine is {plan.stages.engine.kind}: {plan.stages.engine_refused}")
        if plan.stages.steps_refused:
            report.say(f"steps run without their compiled kernels, and slowly: {plan.stages.steps_refused}")
        run = TrialRun(trial, sources, report, choice.plan.limit)
        with closing(trial):
            _, interrupted = until_interrupted(run.run())
            if interrupted is not None:
                run.rest()
    _finish(paths, run.progress, trial.result(), interrupted, everything=everything, as_json=as_json)


def _finish(
    paths: Sequence[str],
    progress: TrialProgress,
    found: TrialResult,
    interrupted: signal.Signals | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    files.say_refusals(progress)
    if as_json:
        show_json({"interrupted": interrupted is not None, **progress.to_dict(), **found.to_dict()})
    elif found.records:
        _show_result(progress, found, everything=everything)
    if interrupted is not None:
        read = f", {progress.bytes_read / progress.bytes_total:.0%} read" if progress.bytes_total else ""
        say(f"interrupted: these are the figures of the first {count(found.records, 'document')}{read}")
        sys.exit(128 + interrupted)
    files.require_whole(progress.broken)
    files.require_documents(paths, found.records)


def _show_result(progress: TrialProgress, found: TrialResult, *, everything: bool) -> None:
    totals, sources = found.totals, count(progress.sources, "file")
    show(f"{count(found.records, 'document')} of {sources}, {size(progress.bytes)}, in {progress.seconds:.1f} s")
    if found.unowned:
        show(f"In no split: {found.unowned:,}")
    if progress.refused:
        show(f"Passed over: {progress.refused:,} that `tokenmill produce` would not send")
    show_figures(found.retention, tokens=found.dropped_tokens)
    if everything:
        show("")
        show_table(_speed_table(found))
        lengths = length_bars(totals.figures.token_lengths)
        for line in ("", *terminal_bars("tokens a document", lengths)) if lengths else ():
            show(line)
    show("")
    for title, documents in _titled_examples(found):
        show_examples(title, documents, whole=everything)
    if not everything:
        say("--all shows more examples and their texts, speeds and lengths")


def _speed_table(found: TrialResult) -> ShownTable:
    rows = []
    for name, speed in found.speeds.items():
        rate = speed.megabytes_per_second
        shown = None if rate is None else f"{rate:,.{1 if rate < EXACT_BELOW else 0}f}"
        rows.append((name, size(speed.text_bytes), shown, f"{speed.seconds:.2f}", found.changes.get(name)))
    return ShownTable(("stage", "text", "MB/s", "seconds", "texts changed"), rows)


def _titled_examples(found: TrialResult) -> Iterator[tuple[str, Sequence[TriedDocument]]]:
    filtered, refused = found.totals.filtered, found.totals.dead_lettered
    for reason, documents in found.rejected.items():
        yield f"{reason}: {_of_all(documents, filtered[reason])} that it drops", documents
    for reason, documents in found.dead_letters.items():
        yield f"dead letter, {reason}: {_of_all(documents, refused[reason])}", documents
    for label, documents in found.changed.items():
        yield f"{label}: {_of_all(documents, found.changes[label])} that it changes", documents
    if found.kept:
        yield f"kept: {_of_all(found.kept, found.totals.kept)}", found.kept


def _of_all(items: Sequence[object], number: int) -> str:
    """Return how many are shown, and of how many: ``5 of 1,234``; the number alone where these are all."""
    return f"{len(items):,} of {number:,}" if len(items) < number else f"{number:,}"


class _TrialProgressLine(ProgressLine):
    """Shows how far a trial is: called with its progress."""

    def __call__(self, progress: TrialProgress) -> None:
        rate = progress.bytes / progress.seconds if progress.seconds else 0.0
        line = f"{count(progress.documents, 'document')}, {size(progress.bytes)}, {size(rate)}/s"
        line += f", {progress.refused:,} passed over" if progress.refused else ""
        done, total = progress.bytes_read, progress.bytes_total
        if progress.limit is not None:
            done, total = progress.documents, progress.limit
        read = f", {done / total:.0%} done" if total else ""
        self.show(line, done, total, lambda: line + read)


SHOWN_IDS = 16


@command(
    "tokenizer",
    "tokenmill tokenizer tokenizer.json --text corpus.jsonl",
    "tokenmill tokenizer openai-community/gpt2",
    shown=("engine",),
)
def tokenizer_command(
    settings: Settings,
    name: Annotated[str, argument("A tokenizer.json, a folder with one, or a name on the hub.", "PATH_OR_NAME")],
    *,
    text: Annotated[
        list[str] | None, option("Text to try it on, as `produce` reads it; may be given again.", "PATH")
    ] = None,
    seconds: Annotated[float, option("How long to look for differences.", "SECONDS", "--search", min=0)] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show a tokenizer's kind, size and special tokens, the engine for it, speeds, and texts on which engines differ.

    The search tries your text and mutations of it, all Unicode categories, runs of white space and very long words.
    Ends with 13 when it found a difference.
    """
    tokenizer = load_tokenizer(name)
    with EscapingConsole(stderr=True).status("timing the engines") as status:
        report = report_on(
            *(tokenizer, _Texts(_items(settings, text)) if text else (), settings.engine, seconds),
            tick=lambda tried: status.update(f"searching for differences: {count(tried, 'text')} tried"),
        )
    if as_json:
        show_json(report)
    else:
        for line in lines(report):
            show(line)
    if report["differences"]:
        raise typer.Exit(EngineError.exit_code)


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report for people, a line a fact."""
    about = report["description"]
    yield f"{report['name']}: {about['model']}, {count(report['vocabulary_size'], 'id')}, blocks of {report['dtype']}"
    yield f"normalizer: {about['normalizer']}; pre-tokenizer: {about['pre_tokenizer']}"
    yield f"special tokens, text where they stand in a text: {_tokens(about['special'])}"
    if about["added"]:
        yield f"added tokens, found in texts: {_tokens(about['added'])}"
    yield f"a document ends with: {report['end']}"
    yield f"rows are padded with: {report['padding']}"
    yield f"a text may begin with (if begin_of_document says so): {report['begin']}"
    yield f"what is not in the vocabulary is: {report['unknown']}"
    yield f"engine: {report['engine']}" + (f" ({report['refused']})" if report["refused"] else "")
    for engine, speed in report["speeds"].items():
        yield f"speed of {engine}: {size(speed)}/s on one core"
    if report["tried"]:
        yield f"differences between engines: {len(report['differences'])} in {count(report['tried'], 'text')}"
    for difference in report["differences"]:
        yield f"  {difference['text']!a}: {_ids(difference['ids'])}, by tokenizers {_ids(difference['right'])}"


def _tokens(tokens: Mapping[str, int]) -> str:
    shown = [f"{name} {number}" for name, number in list(tokens.items())[:12]]  # --json has all
    more = len(tokens) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "") if shown else "none"


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:SHOWN_IDS])) + (" …" if len(ids) > SHOWN_IDS else "")


@command(
    "train-tokenizer",
    "tokenmill train-tokenizer corpus.jsonl notes/",
    "tokenmill train-tokenizer notes/ --vocabulary-size 4096 --output small.json",
    shown=("text_fields",),
)
@files.with_reading(*files.UNUSED, "id_field", "metadata_fields")
def train_command(
    settings: Settings,
    paths: files.Paths,
    *,
    output: Annotated[Path, option("The file to write.")] = Path("tokenizer.json"),
    # By default ids of uint16 with room; small models spend little on their embedding.
    vocabulary_size: Annotated[int, option("Number of ids, the 256 bytes included.", min=257)] = 16_384,
    choice: files.SourceChoice,
) -> None:
    """Train a byte-level BPE tokenizer on files, folders or standard input, read as `produce` reads them."""
    require_file("--output", output)  # before minutes of work
    with choice.opened(settings, settings.raw_topics[0], paths) as (_, sources):
        texts = _Texts(read_items(sources), choice.plan.limit)
        tokenizer = train_tokenizer(iter(texts), vocabulary_size=vocabulary_size)
    output.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    say(f"{count(tokenizer.get_vocab_size(), 'id')} learnt from {count(texts.documents, 'document')}")
    show(str(output))


def _items(settings: Settings, paths: Sequence[str]) -> Iterator[Item | Refused]:
    reading = Reading(shape_for(settings.for_topic(settings.raw_topics[0]), settings.max_record_bytes))
    return read_items(files.found_sources(paths, reading))


class _Texts:
    """The documents' texts; counts them, and names those that cannot be used."""

    def __init__(self, items: Iterable[Item | Refused], limit: int | None = None) -> None:
        self._items = items
        self._limit = limit
        self.documents = 0

    def __iter__(self) -> Iterator[str]:
        for item in self._items:
            if isinstance(item, Refused):
                say(f"{item.where}: {item.why}")
            else:
                self.documents += 1
                yield item.text
            if self.documents == self._limit:
                return
