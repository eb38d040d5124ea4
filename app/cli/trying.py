"""``tokenmill try``: what a recipe makes of files, before any of it is in Kafka."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Final

from ..funnel.retention import TriedDocument, length_bars, terminal_bars
from ..funnel.trial import TrialResult
from ..settings import Settings
from ..tables import ShownTable
from ..tasks import until_interrupted
from ..tools.trial_run import TrialProgress, TrialRun, plan_trial, trial_settings
from .figures import example_lines, show_figures
from .options import command, option
from .output import All, AsJson, count, of_all, say, show, show_json, show_table, size
from .progress import ProgressLine
from .reading_options import (
    UNUSED,
    Paths,
    SourceChoice,
    require_documents,
    require_whole,
    say_refusals,
    with_reading,
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
@with_reading(*UNUSED)
def try_command(
    settings: Settings,
    paths: Paths,
    *,
    choice: SourceChoice,
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
    line = TrialProgressLine("opening the steps")
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
    say_refusals(progress)
    if as_json:
        show_json({"interrupted": interrupted is not None, **progress.to_dict(), **found.to_dict()})
    elif found.records:
        show_result(progress, found, everything=everything)
    if interrupted is not None:
        read = f", {progress.bytes_read / progress.bytes_total:.0%} read" if progress.bytes_total else ""
        say(f"interrupted: these are the figures of the first {count(found.records, 'document')}{read}")
        sys.exit(128 + interrupted)
    require_whole(progress.broken)
    require_documents(paths, found.records)


def show_result(progress: TrialProgress, found: TrialResult, *, everything: bool) -> None:
    """Show figures and examples; with ``everything``, speeds and lengths as well."""
    totals, files = found.totals, count(progress.sources, "file")
    show(f"{count(found.records, 'document')} of {files}, {size(progress.bytes)}, in {progress.seconds:.1f} s")
    if found.unowned:
        show(f"In no split: {found.unowned:,}")
    if progress.refused:
        show(f"Passed over: {progress.refused:,} that `tokenmill produce` would not send")
    show_figures(found.retention, tokens=found.dropped_tokens)
    if everything:
        show("")
        show_table(speed_table(found))
        lengths = length_bars(totals.figures.token_lengths)
        for line in ("", *terminal_bars("tokens a document", lengths)) if lengths else ():
            show(line)
    show("")
    for title, documents in titled_examples(found):
        for line in example_lines(title, documents, whole=everything):
            show(line)
    if not everything:
        say("--all shows more examples and their texts, speeds and lengths")


def speed_table(found: TrialResult) -> ShownTable:
    """Return a row for each stage: how fast it was, and how many texts it changed."""
    rows = []
    for name, speed in found.speeds.items():
        rate = speed.megabytes_per_second
        shown = None if rate is None else f"{rate:,.{1 if rate < EXACT_BELOW else 0}f}"
        rows.append((name, size(speed.text_bytes), shown, f"{speed.seconds:.2f}", found.changes.get(name)))
    return ShownTable(("stage", "text", "MB/s", "seconds", "texts changed"), rows)


def titled_examples(found: TrialResult) -> Iterator[tuple[str, Sequence[TriedDocument]]]:
    """Yield the examples: of each reason, of dead letters, of changed texts, of what is kept."""
    filtered, refused = found.totals.filtered, found.totals.dead_lettered
    for reason, documents in found.rejected.items():
        yield f"{reason}: {of_all(documents, filtered[reason])} that it drops", documents
    for reason, documents in found.dead_letters.items():
        yield f"dead letter, {reason}: {of_all(documents, refused[reason])}", documents
    for label, documents in found.changed.items():
        yield f"{label}: {of_all(documents, found.changes[label])} that it changes", documents
    if found.kept:
        yield f"kept: {of_all(found.kept, found.totals.kept)}", found.kept


class TrialProgressLine(ProgressLine):
    """Shows how far a trial is: called with its progress."""

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
