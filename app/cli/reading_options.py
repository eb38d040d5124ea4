"""What commands that read files share: options (files, how, fields, documents), progress, and what is said of them."""

import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Annotated, Any, Final, TypeVar, get_args

import typer

from tokenmill.errors import InputError, SettingsError

from ..milling.decoding import FORMATS
from ..settings import Settings
from ..settings.values import parse_size
from ..sources import DocumentSource, FolderWalk, Reading, ShapeOptions, find_sources, is_piped, shape_for
from ..sources.conditions import Condition
from ..sources.datasets import DatasetSource
from ..sources.encodings import known_encoding
from ..sources.file_sources import OpenedSources
from ..sources.formats import Choice
from ..sources.mapping import CALL_SECONDS, Mapping
from ..sources.sql import SqlSource
from ..tools.produce.run_notes import deciding_options, run_identity
from ..tools.produce.sending import COUNTED, OnError, PassedOver, ReadingPlan, Summary
from .options import argument, panel, require_beside
from .output import ProgressLine, count, say, size

R = TypeVar("R")

TORCH: Final = "USE_TORCH"
"""Hugging Face's libraries look at this variable when they are loaded: whether they use torch."""

_read = panel("How files are read")
_sent = panel("What is sent")
_ESCAPES: Final = {"n": "\n", "t": "\t", "f": "\f", "r": "\r", "0": "\0", "\\": "\\"}

Paths = Annotated[list[str], argument("Files, folders, patterns, s3:// https:// hf://, or - (standard input).", "PATH")]
FormatName = Annotated[Choice, _read(f"{', '.join(get_args(Choice))}. auto: by name or content.", "NAME", "--format")]
Lines = Annotated[bool, _read("Each line of a text is a document.", None, "--lines")]

_FOR_EXAMPLE: Final = {"delimiter": "';'", "quote": '"\'", or none', "escape": "'\\'"}

UNUSED: Final = ("plain", "shuffle_buffer", "seed", "key", "on_error")
"""Options of reading that change nothing of what a recipe makes of documents."""


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """What a person said of the files of a command, and of the order of their documents."""

    reading: Callable[..., Reading]
    """Makes, of a shape and a mapping, how the files are read."""
    follow_links: bool
    split: str | None
    sql: str | None
    shape: ShapeOptions
    mapping: Callable[[], Mapping] | None
    plan: ReadingPlan
    """Without an identity."""

    @contextmanager
    def opened(self, settings: Settings, topic: str, paths: Sequence[str]) -> Iterator[OpenedSources]:
        """Yield the sources of documents for a raw topic; says what in folders is not read.

        Raises SettingsError where the topic takes no documents of files, InputError where a path or option cannot be
        used.
        """
        decode = settings.for_topic(topic).decode
        if decode in FORMATS:
            raise SettingsError(
                f'decode = "{decode}": the mill takes records of {topic} that name a schema, as serializers of your '
                "own producers write them, and files are sent as JSON or text: give them a raw topic of their own"
            )
        mapping = None if self.mapping is None else self.mapping()
        if mapping is not None and mapping.batch == 1:
            say("--map-batch 1: the function gets a list of one row, and returns a list; without it, it gets the row")
        try:
            shape = shape_for(settings.for_topic(topic), settings.max_record_bytes, self.shape)
            reading = self.reading(shape=shape, mapping=mapping)
            if self.sql is None:
                sources = found_sources(paths, reading, self.split, follow_links=self.follow_links)
                _require_split(self.split, sources)
            else:
                sources = [SqlSource(url, self.sql, reading) for url in paths]
            yield OpenedSources(reading, sources)
        finally:
            if mapping is not None:
                mapping.close()

    def carried(self, settings: Settings, topic: str) -> Settings:
        """Return the settings of a command that mills by itself: the flag `--metadata-fields` is the setting, too."""
        if self.shape.metadata_fields is None:
            return settings
        own = settings.topic.get(topic, {}) | {"metadata_fields": self.shape.metadata_fields}
        return settings.model_copy(update={"topic": {**settings.topic, topic: own}})

    def identity(self, topic: str, paths: Sequence[str], reading: Reading) -> str | None:
        """Return the identity of a run over the paths, links that are followed aside; None: it cannot be continued."""
        return None if any(map(is_piped, paths)) else run_identity(topic, self.options(reading), paths)

    def options(self, reading: Reading) -> dict[str, object]:
        """Return what decides which documents are sent, and in which order."""
        return deciding_options(reading, self.split, self.plan.shuffle, self.plan.seed, self.sql)


def found_sources(
    paths: Sequence[str], reading: Reading, split: str | None = None, *, follow_links: bool = False
) -> list[DocumentSource]:
    """Return the sources as `find_sources` does, without torch; says what in folders is not read."""
    walk = FolderWalk(follow_links)
    try:
        with _without_torch():
            return find_sources(paths, reading, split, walk)
    finally:
        say_first(walk.left_out, len(walk.left_out), "left out {}")


@contextmanager
def _without_torch() -> Iterator[None]:
    """Let `datasets` load no torch in the block: that takes seconds. Behind it, a user's function may need torch."""
    if TORCH in os.environ or "torch" in sys.modules:
        yield
        return
    os.environ[TORCH] = "0"
    try:
        yield
    finally:
        del os.environ[TORCH]


def with_reading(*without: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command the options of reading but for some, as a `SourceChoice` that is its parameter ``choice``."""
    options = {
        name: parameter
        for name, parameter in inspect.signature(_source_choice, eval_str=True).parameters.items()
        if name not in without
    }

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def run(settings: Settings, **arguments: Any) -> R:
            choice = _source_choice(**{name: arguments.pop(name) for name in options})
            return command(settings, **arguments, choice=choice)

        parameters: list[inspect.Parameter] = []
        signature = inspect.signature(command, eval_str=True)
        for name, parameter in signature.parameters.items():
            parameters += options.values() if name == "choice" else [parameter]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _source_choice(
    *,
    format_name: FormatName = "auto",
    lines: Lines = False,
    delimiter: Annotated[str | None, _read("Between fields of csv, tsv: ';' or '\\t'.", "CHARACTER")] = None,
    quote: Annotated[str, _read("Around fields; none: quotes are text.", "CHARACTER")] = '"',
    escape: Annotated[str | None, _read("Before quotes within fields: '\\'.", "CHARACTER")] = None,
    encoding: Annotated[str | None, _read("Of what is text: utf-16, cp1252.", "NAME")] = None,
    separator: Annotated[str | None, _read("Between documents in a text: '\\n\\n'.", "TEXT")] = None,
    unpack_memory: Annotated[str, _read("Of a compressed file: 256MiB.", "SIZE", show_default=False)] = "256MiB",
    follow_links: Annotated[bool, _read("Also links that lead out of a folder.")] = False,
    split: Annotated[str | None, _read("Split of a Hugging Face data set.", "NAME")] = None,
    extract: Annotated[bool, _read("The main text of HTML pages.")] = False,
    sql: Annotated[str | None, _read("A SELECT with ORDER BY; PATH is the URL.", "QUERY")] = None,
    field: Annotated[
        list[str] | None,
        _sent("Field with the text, or a dotted path; again: the next one to try. Default: text_fields.", "NAME"),
    ] = None,
    id_field: Annotated[str | None, _sent("Field with the id.", "NAME")] = None,
    metadata_fields: Annotated[
        str | None, _sent("Fields that go with the text: label,lang. No others do.", "NAMES")
    ] = None,
    nan_as_null: Annotated[bool, _sent("Leave out fields of NaN, infinity.")] = False,
    where: Annotated[
        list[str] | None,
        _sent("Only documents that meet it: lang=en, score>=0.5, lang in en,de. Again: that meet all.", "CONDITION"),
    ] = None,
    map_name: Annotated[
        str | None,
        _sent(
            "A function of your own on every row, in parallel: dict to dict, text, or None.", "MODULE:FUNCTION", "--map"
        ),
    ] = None,
    map_batch: Annotated[
        int | None, _sent("It gets a list of N rows at most, and returns as many.", "N", min=1)
    ] = None,
    map_processes: Annotated[int | None, _sent("Default: physical cores.", "N", min=1)] = None,
    map_timeout: Annotated[float, _sent("How long a call of it may take.", "SECONDS", min=0.1)] = CALL_SECONDS,
    plain: Annotated[bool, _sent("Send the text alone, without id.")] = False,
    on_error: Annotated[
        OnError, _sent(f"What happens to what cannot be a document: {', '.join(get_args(OnError))}.", "NAME")
    ] = "skip",
    limit: Annotated[int | None, _sent("Stop after this many documents.", "N", min=1)] = None,
    shuffle_buffer: Annotated[int, _sent("Documents that are shuffled.", "N", min=0)] = 0,
    seed: Annotated[int, _sent("Decides the shuffled order.")] = 0,
    key: Annotated[str | None, _sent("Equal values share a partition.", "FIELD")] = None,
) -> SourceChoice:
    require_beside("--map", map_name, map_batch=map_batch, map_processes=map_processes)
    require_beside("--shuffle-buffer", shuffle_buffer, seed=seed)
    shape_options = ShapeOptions(
        fields=tuple(field or ()),
        id_field=id_field,
        metadata_fields=None
        if metadata_fields is None
        else tuple(name.strip() for name in metadata_fields.split(",") if name.strip()),
        where=tuple(map(Condition.parse, where or ())),
        key=key,
        plain=plain,
        nan_as_null=nan_as_null,
    )
    reading = partial(
        Reading,
        choice="lines" if lines else format_name,
        delimiter=parse_character("delimiter", delimiter),
        encoding=None if encoding is None else known_encoding(encoding),
        extract=extract,
        quote="" if quote == "none" else parse_character("quote", quote) or "",
        escape=parse_character("escape", escape),
        separator=_parse_separator(separator, lines=lines or format_name == "lines"),
        unpack_memory=_parse_memory(unpack_memory),
    )
    mapping = None if map_name is None else partial(Mapping, map_name, map_processes, map_batch, map_timeout)
    plan = ReadingPlan(limit=limit, on_error=on_error, shuffle=shuffle_buffer, seed=seed)
    return SourceChoice(reading, follow_links, split, sql, shape_options, mapping, plan)


def _require_split(split: str | None, sources: Sequence[DocumentSource]) -> None:
    if split is not None and ("=" in split or not any(isinstance(source, DatasetSource) for source in sources)):
        shares = split if "=" in split else "train=90,validation=10"
        raise InputError(
            f"--split {split}: it names a split of a Hugging Face data set"
            f"{'' if '=' in split else ', and no path is one'}. `pack` and `serve` divide documents: --splits {shares}"
        )


def _parse_separator(given: str | None, *, lines: bool) -> str | None:
    r"""Return what is between documents, with ``\n`` and the like replaced; raises typer.BadParameter: it cannot be."""
    if given is not None and (lines or not given):
        raise typer.BadParameter(
            "give a text, for example '<|endoftext|>' or '\\n\\n', and no --lines", param_hint="--separator"
        )
    return None if given is None else re.sub(r"\\([ntfr0\\])", lambda found: _ESCAPES[found[1]], given)


def _parse_memory(given: str) -> int:
    try:
        return parse_size(given)
    except ValueError as error:
        raise typer.BadParameter(f"{given!r} is no size: write one like 2GiB", param_hint="--unpack-memory") from error


def parse_character(option: str, given: str | None) -> str | None:
    r"""Return a character that has a meaning in tables, ``\t`` for a tab; raises typer.BadParameter: it has none."""
    found = "\t" if given in ("\\t", "tab") else given
    if found is not None and (len(found) != 1 or found in "\r\n\0" or (found == '"' and option != "quote")):
        raise typer.BadParameter(
            f"{given!r} has no such meaning in a table: give one character, for example {_FOR_EXAMPLE[option]}",
            param_hint=f"--{option}",
        )
    return found


SHOWN_REFUSALS: Final = 5


def say_first(texts: Sequence[str], number: int, rest: str, told: int = 0) -> None:
    """Say the first texts, but for those that are ``told``, and how many there are in all."""
    shown = texts[:SHOWN_REFUSALS]
    for text in shown[told:]:
        say(text)
    if number > len(shown):  # an earlier call showed the others
        say(f"… {rest.format(f'{number:,}')} in all")


def say_refusals(found: PassedOver, told: int = 0) -> None:
    """Say what was passed over: the first documents, but for those that are ``told``, and the number of each kind."""
    say_first([f"{one.where}: {one.why}" for one in found.examples], found.refused, "passed over {}", told)
    if found.over:
        say(f"{', '.join(f'{number:,} over {name}' for name, number in found.over.items())}: a higher limit takes them")
    if found.unmet:
        without = f", {found.without_field:,} of them without its field" if found.without_field else ""
        say(f"--where left out {count(found.unmet, 'document')}{without}")
    if found.unnamed:
        say(
            f"{count(found.unnamed, 'document')} without an id: the field is not there, or neither a text nor a whole "
            "number; rows are called after file and row, and --id-field names another field"
        )


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return the summary as JSON types."""
    parts = summary.partitions.items()
    partitions = [{"partition": number, "documents": sent.documents, "bytes": sent.bytes} for number, sent in parts]
    sent = {"topic": summary.topic, "documents": summary.documents, "bytes": summary.bytes}
    run = {"seconds": round(summary.seconds, 3), "before": summary.before}
    return {**sent, **run, **{name: getattr(summary, name) for name in COUNTED}, "partitions": partitions}


def require_documents(paths: Sequence[str], documents: int) -> None:
    """Raise `InputError` where there was no document."""
    if not documents:
        raise InputError(f"there are no documents in {' '.join(paths)}; see --format, and the messages above if any")


def require_whole(broken: int, told: str = "above") -> None:
    """Raise `InputError` where files could not be read to their ends; ``told`` is where each was named."""
    if broken:
        raise InputError(f"{count(broken, 'file')} could not be read to the end; see {told}")


class ProduceProgress(ProgressLine):
    """Shows the progress of a run, to its limit or to the end of all files: called with its summary."""

    def __init__(self) -> None:
        super().__init__("starting")
        self._began = time.monotonic()
        self._done_before: int | None = None
        self.latest: Summary | None = None  # the summary of the last call; its numbers go on growing

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        self.latest = summary
        for refused in summary.examples[summary.told : SHOWN_REFUSALS]:  # at once: a run may take hours
            summary.told += 1
            self.say(f"{refused.where}: {refused.why}")
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        done, total = _done(summary)
        self.show(f"{summary.topic}: {line}", done, total, lambda: line + self._left(summary, done, total))

    def _left(self, summary: Summary, done: int, total: int) -> str:
        if not total:
            return ""
        told = f", {done / total:.0%} {'read' if summary.limit is None else f'of the limit of {summary.limit:,}'}"
        if self._done_before is None:  # an interrupted run begins in the middle
            self._done_before, self._began = done, time.monotonic()
            return told
        speed = (done - self._done_before) / max(time.monotonic() - self._began, 1e-9)
        seconds = (total - done) / speed if speed else 0
        return told + (f", {timedelta(seconds=round(seconds))} left" if seconds else "")


def _done(summary: Summary) -> tuple[int, int]:
    """Return how far the run is, and where it ends: in documents with a limit, else in bytes; 0: unknown."""
    if summary.limit is None:
        return summary.bytes_read, summary.bytes_total
    read = summary.limit * summary.bytes_read // summary.bytes_total if summary.bytes_total else 0
    return min(summary.limit, max(summary.before + summary.documents, read)), summary.limit
