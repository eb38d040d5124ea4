"""``tokenmill try``: what a recipe makes of files, before any of it is in Kafka."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, TimeRemainingColumn
from rich.table import Table

from tokenmill.errors import InputError
from tokenmill.funnel.pictures import languages_line, length_bars, terminal_bars
from tokenmill.funnel.trial import TrialResult
from tokenmill.funnel.tried_documents import TriedDocument
from tokenmill.sources import Reading, ShapeOptions, shape_for
from tokenmill.sources.conditions import Condition
from tokenmill.sources.encodings import known_encoding

from ..mill.recipes import RawTopicPlan
from ..settings import Settings
from ..terminal import escaped
from ..tools.trial_run import TrialProgress, TrialRun, plan_trial, trial_settings
from .options import examples, with_settings
from .output import AsJson, PlainColumn, count, say, show, show_json, show_table, size
from .produce_output import say_refusals, say_unmet
from .progress import ProgressLine, until_interrupted
from .reading_options import HOW_READ, FormatName, Lines, Paths, found_sources, parse_delimiter

MOST_EXAMPLES: Final = 100
"""Of each reason: they are held in memory, with the records that they come from."""
EXACT_BELOW: Final = 100
"""MB a second; a faster stage is shown without a decimal."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "try",
        epilog=examples(
            "tokenmill try corpus.jsonl --profile fineweb-2024",
            "tokenmill try 'pages/*.warc.gz' --steps language,gopher --limit 10000",
            "tokenmill try notes/ --json > funnel.json",
        ),
    )(with_settings(try_command, "steps", "tokenizer", "decode", "text_fields"))


def try_command(
    settings: Settings,
    paths: Paths,
    *,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="The steps of this profile, in place of the setting steps.")
    ] = None,
    shown: Annotated[
        int, typer.Option("--examples", min=0, max=MOST_EXAMPLES, metavar="N", help="Documents shown of each reason.")
    ] = 5,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many documents.")] = None,
    topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The raw topic whose settings are tried. Default: the first of raw_topics."),
    ] = None,
    format_name: FormatName = "auto",
    lines: Lines = False,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHARACTER", help="Between the fields of csv and tsv.", rich_help_panel=HOW_READ),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of csv, tsv and texts.", rich_help_panel=HOW_READ)
    ] = None,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also links that lead out of a folder.", rich_help_panel=HOW_READ)
    ] = False,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split of a Hugging Face data set.", rich_help_panel=HOW_READ)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Field with the text. Default: text_fields.", rich_help_panel=HOW_READ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Only documents that meet it: lang=en.", rich_help_panel=HOW_READ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try steps on files: what is kept, what drops the rest, and examples of it. No Kafka is needed.

    Files are read, and their documents made, as `tokenmill produce` does; the recipe is that of the settings, as the
    mill uses it. So the figures are those that `tokenmill ledger` would show of the same files. Examples are chosen
    evenly, with the numbers that decided. Ctrl-C ends it with the figures so far.
    """
    settings = trial_settings(settings, topic or settings.raw_topics[0], profile)
    shape = shape_for(
        settings.for_topic(settings.raw_topics[0]), settings.max_record_bytes, _shape_options(field, where)
    )
    code = None if encoding is None else known_encoding(encoding)
    reading = Reading(shape, "lines" if lines else format_name, None, parse_delimiter(delimiter), code)
    sources = found_sources(paths, reading, split, follow_links=follow_links)
    with TrialProgressLine() as report:
        plan, trial = plan_trial(settings, shown)
        _say_choices(plan, report)
        run = TrialRun(trial, sources, report, limit)
        _, interrupted = until_interrupted(run.run())
        if interrupted is not None:
            run.rest()
    _finish(paths, run.progress, trial.result(), interrupted, as_json=as_json)


def _shape_options(field: Sequence[str] | None, where: Sequence[str] | None) -> ShapeOptions:
    return ShapeOptions(fields=tuple(field or ()), where=tuple(map(Condition.parse, where or ())))


def _say_choices(plan: RawTopicPlan, report: "TrialProgressLine") -> None:
    """Say what is not as one may expect."""
    if plan.tokenizer.content is None:
        report.say("tokens are bytes; for those of a tokenizer: --tokenizer")
    if plan.stages.engine_refused:
        report.say(f"{plan.stages.engine.kind} makes the tokens: {plan.stages.engine_refused}")
    if plan.stages.steps_refused:
        report.say(f"plain steps: {plan.stages.steps_refused}")


def _finish(
    paths: Sequence[str],
    progress: TrialProgress,
    found: TrialResult,
    interrupted: signal.Signals | None,
    *,
    as_json: bool,
) -> None:
    say_refusals(progress)
    say_unmet(progress)
    if as_json:
        show_json({"interrupted": interrupted is not None, **progress.to_dict(), **found.to_dict()})
    elif found.records:
        show_result(progress, found)
    if interrupted is not None:
        read = f", {progress.bytes_read / progress.bytes_total:.0%} read" if progress.bytes_total else ""
        say(f"interrupted: these are the figures of the first {count(found.records, 'document')}{read}")
        sys.exit(128 + interrupted)
    if progress.broken:
        raise InputError(f"{count(progress.broken, 'file')} could not be read to the end; see above")
    if not found.records:
        raise InputError(f"there are no documents in {' '.join(paths)}; see --format, and the messages above if any")


def show_result(progress: TrialProgress, found: TrialResult) -> None:
    """Show figures, speeds, lengths, and examples."""
    for line in summary_lines(progress, found):
        show(line)
    show("")
    show_table(funnel_table(found))
    show("")
    show_table(speed_table(found))
    lengths = length_bars(found.totals.figures.token_lengths)
    for line in ("", *terminal_bars("tokens a document", lengths)) if lengths else ():
        show(line)
    for line in example_lines(found):
        show(line)


def summary_lines(progress: TrialProgress, found: TrialResult) -> list[str]:
    """Return the figures as people quote them."""
    totals, retention = found.totals, found.retention
    files = count(progress.sources, "file")
    lines = [f"{count(found.records, 'document')} of {files}, {size(progress.bytes)}, in {progress.seconds:.1f} s"]
    lines += [line for line in retention.lines() if not line.startswith("Efficiency")]  # no blocks are made
    if totals.figures.languages:
        spoken = [(name, amount.documents) for name, amount in totals.figures.languages.items()]
        lines.append(f"Languages: {languages_line(spoken)}")
    if totals.dead_lettered:
        lines.append(f"Dead letters: {totals.dead_lettered.total():,}")
    if found.unowned:
        lines.append(f"In no split: {found.unowned:,}")
    if progress.refused:
        lines.append(f"Passed over: {progress.refused:,} that `tokenmill produce` would not send")
    return lines


def funnel_table(found: TrialResult) -> Table:
    """Return a row for what came, each reason, each reason of dead letters, and what is kept."""
    table = Table("step", "reason", "documents", "share", "bytes of text", "tokens", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    totals, retention = found.totals, found.retention
    rows: list[tuple[str, str, int, int | None, int | None]] = [
        ("came", "", retention.documents, totals.figures.entered.size, None),
        *(
            (row.step or "tokenizer", row.reason, row.documents, row.text_bytes, found.dropped_tokens[row.reason])
            for row in retention.funnel()
        ),
        ("kept", "", totals.kept, retention.kept_bytes, totals.tokens),
    ]
    for step, reason, documents, text_bytes, tokens in rows:
        share = f"{documents / retention.documents:.1%}" if retention.documents else ""
        sizes = ("" if number is None else f"{number:,}" for number in (text_bytes, tokens))
        table.add_row(escaped(step), escaped(reason), f"{documents:,}", share, *sizes)
    for reason, documents in totals.dead_lettered.most_common():
        table.add_row("dead letter", escaped(reason), f"{documents:,}", "", "", "")
    return table


def speed_table(found: TrialResult) -> Table:
    """Return a row for each stage: how fast it was, and how many texts it changed."""
    table = Table("stage", "text", "MB/s", "seconds", "texts changed", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, speed in found.speeds.items():
        rate = speed.megabytes_per_second
        changed = f"{found.changes[name]:,}" if name in found.changes else ""
        shown_rate = "" if rate is None else f"{rate:,.{1 if rate < EXACT_BELOW else 0}f}"
        table.add_row(escaped(name), size(speed.text_bytes), shown_rate, f"{speed.seconds:.2f}", changed)
    return table


def example_lines(found: TrialResult) -> Iterator[str]:
    """Yield the examples: of each reason, of dead letters, of changed texts, of what is kept."""
    filtered, refused = found.totals.filtered, found.totals.dead_lettered
    for reason, documents in found.rejected.items():
        yield from _examples(f"{reason}: {_some(documents, filtered[reason])} that it drops", documents)
    for reason, documents in found.dead_letters.items():
        yield from _examples(f"dead letter, {reason}: {_some(documents, refused[reason])}", documents)
    for label, documents in found.changed.items():
        yield from _examples(f"{label}: {_some(documents, found.changes[label])} that it changes", documents)
    if found.kept:
        yield from _examples(f"kept: {_some(found.kept, found.totals.kept)}", found.kept)


def _some(documents: Sequence[TriedDocument], number: int) -> str:
    return f"{len(documents):,} of {number:,}" if len(documents) < number else f"{number:,}"


def _examples(title: str, documents: Iterable[TriedDocument]) -> Iterator[str]:
    yield ""
    yield title
    for one in documents:
        yield f"  {one.place}{f'  {one.detail}' if one.detail else ''}"
        if one.after is not None:
            yield f"    - {one.text}"
            yield f"    + {one.after}"
        elif one.text:
            yield f"    {one.text}"


class TrialProgressLine(ProgressLine):
    """Shows how far a trial is: called with its progress."""

    def __init__(self) -> None:
        columns = (PlainColumn("  {task.description}"), BarColumn(20), TimeRemainingColumn())
        super().__init__(*columns, description="opening the steps")

    def __call__(self, progress: TrialProgress) -> None:
        """Show it."""
        rate = progress.bytes / progress.seconds if progress.seconds else 0.0
        line = f"{count(progress.documents, 'document')}, {size(progress.bytes)}, {size(rate)}/s"
        line += f", {progress.refused:,} passed over" if progress.refused else ""
        done, total = progress.bytes_read, progress.bytes_total
        if progress.limit is not None:
            done, total = progress.documents, progress.limit
        read = f", {done / total:.0%} done" if total else ""
        self.show(line, done, total, lambda: line + read)
