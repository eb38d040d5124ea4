"""``tokenmill produce`` and ``tokenmill flush``: text into a raw topic."""

import asyncio
import signal
import sys
from typing import Annotated, Literal, get_args

import typer

from tokenmill.errors import InputError, SettingsError
from tokenmill.stages.decoding import FORMATS

from ..settings import Settings
from ..settings.values import parse_size
from ..tools.produce import (
    FolderWalk,
    Reading,
    RunIdentity,
    RunPlan,
    ShapeOptions,
    Summary,
    dry_run,
    find_sources,
    flush,
    is_piped,
    produce,
    require_flush_allowed,
    shape_for,
)
from ..tools.produce.compressed import known_encoding
from ..tools.produce.conditions import Condition
from ..tools.produce.dask_lanes import LaneTask, ReadingOptions, produce_on_dask, require_spreadable
from ..tools.produce.formats import Choice
from ..tools.produce.mapping import CALL_SECONDS, Mapping
from ..tools.produce.run_notes import deciding_options
from ..tools.produce.sql import sql_sources
from ..tools.produce.summary import OnError
from .options import examples, with_settings
from .output import AsJson, count, say, show, show_json
from .produce_output import (
    ProduceProgress,
    interrupted_line,
    say_changed_sources,
    say_not_read,
    say_open_tokens,
    say_refusals,
    say_unmet,
    show_dry_run,
    summary_json,
    summary_line,
)
from .progress import until_interrupted, with_outage_messages

HOW_READ = "How files are read"
WHAT_SENT = "What is sent"
HOW_SENT = "How it is sent"

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The raw topic.", show_default=False)]
Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Files, folders, patterns, s3:// gs:// https:// hf://, or - for standard input.",
        show_default=False,
    ),
]
FormatName = Annotated[
    Choice,
    typer.Option(
        "--format",
        metavar="NAME",
        help=f"{', '.join(get_args(Choice))}. auto: by the suffix; a file of no known suffix is a text.",
        rich_help_panel=HOW_READ,
    ),
]
Lines = Annotated[
    bool, typer.Option("--lines", help="Each line of a text is a document: --format lines.", rich_help_panel=HOW_READ)
]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "produce",
        epilog=examples(
            "tokenmill produce raw-text corpus.jsonl notes/",
            "tokenmill produce raw-text 'data/*.parquet' --field code --id-field path --where language=Python",
            "tokenmill produce raw-text book.txt --lines --rate 2MB",
            "cat corpus.jsonl | tokenmill produce raw-text - --key id",
        ),
    )(with_settings(produce_command))
    app.command("flush", epilog=examples("tokenmill flush raw-text"))(with_settings(flush_command))


def produce_command(
    settings: Settings,
    topic: Topic,
    paths: Paths,
    *,
    format_name: FormatName = "auto",
    lines: Lines = False,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER", help="Between the fields of csv and tsv: ';' or '\\t'.", rich_help_panel=HOW_READ
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of csv, tsv and texts: utf-16, latin-1, cp1252.", rich_help_panel=HOW_READ),
    ] = None,
    follow_links: Annotated[
        bool,
        typer.Option("--follow-links", help="Also links that lead out of a folder.", rich_help_panel=HOW_READ),
    ] = False,
    extract: Annotated[
        bool,
        typer.Option("--extract", help="Extract the main text of HTML pages in WARC files.", rich_help_panel=HOW_READ),
    ] = False,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="A SELECT with an ORDER BY; PATH is the database's URL.", rich_help_panel=HOW_READ
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split of a Hugging Face data set.", rich_help_panel=HOW_READ)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Field with the text, or a dotted path; again: the next one to try. Default: text_fields.",
            rich_help_panel=WHAT_SENT,
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Field with the id; it is sent as the topic's.", rich_help_panel=WHAT_SENT),
    ] = None,
    metadata_fields: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Fields that go with the text: label,lang. No others do.", rich_help_panel=WHAT_SENT
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only documents that meet it: lang=en, score>=0.5, lang in en,de. Again: that meet all.",
            rich_help_panel=WHAT_SENT,
        ),
    ] = None,
    map_name: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="A function of your own on every row, in parallel: dict to dict, text, or None.",
            rich_help_panel=WHAT_SENT,
        ),
    ] = None,
    map_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The function gets a list of N rows at most, and returns a list of as many.",
            rich_help_panel=WHAT_SENT,
        ),
    ] = None,
    map_processes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Processes that run it. Default: physical cores.", rich_help_panel=WHAT_SENT
        ),
    ] = None,
    map_timeout: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="How long a call of it may take.", rich_help_panel=WHAT_SENT),
    ] = CALL_SECONDS,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Send the text alone, no JSON object with an id.", rich_help_panel=WHAT_SENT),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after so many documents.", rich_help_panel=WHAT_SENT)
    ] = None,
    shuffle_buffer: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Shuffle with so many documents in memory.", rich_help_panel=WHAT_SENT),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Decides the shuffled order.", rich_help_panel=WHAT_SENT)] = 0,
    rate: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Send at most this much a second: 2MB.", rich_help_panel=HOW_SENT),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Equal values share a partition; without it documents are spread evenly.",
            rich_help_panel=HOW_SENT,
        ),
    ] = None,
    compression: Annotated[
        Codec,
        typer.Option(
            metavar="NAME", help=f"Codec of the batches: {', '.join(get_args(Codec))}.", rich_help_panel=HOW_SENT
        ),
    ] = "none",
    on_error: Annotated[
        OnError,
        typer.Option(
            metavar="NAME",
            help=f"What happens to what cannot be a document: {', '.join(get_args(OnError))}.",
            rich_help_panel=HOW_SENT,
        ),
    ] = "skip",
    resume: Annotated[
        bool,
        typer.Option(help="The same command goes on where it was interrupted.", rich_help_panel=HOW_SENT),
    ] = True,
    restart: Annotated[
        bool, typer.Option("--restart", help="Send all again, on purpose.", rich_help_panel=HOW_SENT)
    ] = False,
    only_new: Annotated[
        bool,
        typer.Option(
            "--only-new",
            help="Send what was added since: new files, and what files of lines got at their end.",
            rich_help_panel=HOW_SENT,
        ),
    ] = False,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Send from the workers of this Dask cluster: tcp://host:8786.",
            rich_help_panel=HOW_SENT,
        ),
    ] = None,
    then_flush: Annotated[
        bool, typer.Option("--flush", help="Then ask the mill to fill its open blocks.", rich_help_panel=HOW_SENT)
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Send nothing; tell what would be sent.", rich_help_panel=HOW_SENT)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send documents to a raw topic; at the end each is acknowledged by Kafka, once.

    JSON objects go as they are; a text file is one document, {"id": path, "text": …}; so is a row of a table, with the
    fields that are named. Folders and zip archives are read file by file; .gz, .zst, .bz2 and .xz files are
    decompressed. Interrupted, the same command goes on where it was.
    """
    shape_options = ShapeOptions(
        fields=tuple(field or ()),
        id_field=id_field,
        metadata_fields=None
        if metadata_fields is None
        else tuple(name.strip() for name in metadata_fields.split(",") if name.strip()),
        where=tuple(map(Condition.parse, where or ())),
        key=key,
        plain=plain,
    )
    _require_run(paths, resume=resume, restart=restart, only_new=only_new)
    _refuse_framed(settings, topic)
    if then_flush:
        require_flush_allowed(settings, topic)
    mapping = None if map_name is None else Mapping(map_name, map_processes, map_batch, map_timeout)
    try:
        reading = Reading(
            shape_for(settings, topic, shape_options),
            "lines" if lines else format_name,
            mapping,
            parse_delimiter(delimiter),
            None if encoding is None else known_encoding(encoding),
            extract=extract,
        )
        walk = FolderWalk(follow_links)
        try:
            sources = find_sources(paths, reading, split, walk) if sql is None else sql_sources(paths, sql, reading)
        finally:
            say_not_read(walk)
        if dry:
            show_dry_run(dry_run(sources, topic, limit), as_json=as_json)
            return
        options = deciding_options(reading, split, shuffle_buffer, seed, sql)
        plan = RunPlan(
            rate=parse_rate(rate),
            limit=limit,
            on_error=on_error,
            shuffle=shuffle_buffer,
            seed=seed,
            compression=None if compression == "none" else compression,
            identity=_identity(topic, paths, options) if resume else None,
            restart=restart,
            only_new=only_new,
        )
        with ProduceProgress() as report:
            if dask is None:
                work = produce(settings, topic, sources, plan, report)
            else:
                require_spreadable(paths, plan, {"--rate": rate, "--limit": limit, "--shuffle-buffer": shuffle_buffer})
                task = LaneTask(
                    0,
                    settings,
                    topic,
                    ReadingOptions(
                        paths=tuple(paths),
                        shape=shape_options,
                        choice=reading.choice,
                        mapping=None if map_name is None else (map_name, map_processes, map_batch, map_timeout),
                        delimiter=reading.delimiter,
                        encoding=reading.encoding,
                        extract=extract,
                        split=split,
                        sql=sql,
                        follow_links=follow_links,
                    ),
                    options,
                    plan,
                )
                work = asyncio.to_thread(produce_on_dask, dask, task, sources, report)
            work_shown = with_outage_messages(work, settings.bootstrap_servers, report.say)
            summary, interrupted = until_interrupted(work_shown)
    finally:
        if mapping is not None:
            mapping.close()
    if summary is None or interrupted is not None:
        say(interrupted_line(report.latest, topic, goes_on=plan.identity is not None))
        sys.exit(128 + (interrupted or signal.SIGINT))
    _finish(settings, topic, paths, summary, then_flush=then_flush, as_json=as_json)


def _refuse_framed(settings: Settings, topic: str) -> None:
    decode = settings.for_topic(topic).decode
    if decode in FORMATS:
        raise SettingsError(
            f'decode = "{decode}": the mill takes records of {topic} that name a schema, as serializers of your own '
            "producers write them, and `tokenmill produce` writes JSON or text: give it a raw topic of its own"
        )


def flush_command(settings: Settings, topic: Topic) -> None:
    """Ask the mill to fill the open blocks of a raw topic with padding, so that its last tokens become trainable.

    Writes one record to each partition, behind all documents that are there. Refused where the streams of the topic
    have allow_flush = false: such a record would be a tombstone.
    """
    partitions = asyncio.run(flush(settings, topic))
    say(f"asked {count(partitions, 'partition')} of {topic} to fill their open blocks")


def parse_rate(rate: str | None) -> float | None:
    """Return bytes a second of ``2MB`` or ``2MB/s``.

    Raises:
        typer.BadParameter: it is no size, or less than a byte a second.

    """
    if rate is None:
        return None
    try:
        value = parse_size(rate.removesuffix("/s"))
    except ValueError as error:
        raise typer.BadParameter(f"{rate!r} is no rate: write a size like 2MB or 500kB", param_hint="--rate") from error
    if value < 1:
        raise typer.BadParameter(f"{rate!r} would never end: give it 1 byte a second or more", param_hint="--rate")
    return value


def parse_delimiter(delimiter: str | None) -> str | None:
    r"""Return the delimiter; a tab may be written as ``\t``.

    Raises:
        typer.BadParameter: it cannot be between the fields of a table.

    """
    found = "\t" if delimiter in ("\\t", "tab") else delimiter
    if found is not None and (len(found) != 1 or found in '"\r\n\0'):
        raise typer.BadParameter(
            f"{delimiter!r} cannot stand between fields: give one character, for example ';'", param_hint="--delimiter"
        )
    return found


def _require_run(paths: list[str], *, resume: bool, restart: bool, only_new: bool) -> None:
    """Check that what is new can be distinguished from what was sent, if only that is wanted."""
    if only_new and (restart or not resume or any(map(is_piped, paths))):
        other = "--restart" if restart else "standard input or a pipe" if resume else "--no-resume"
        raise InputError(f"--only-new goes on behind what was sent before; {other} does not: leave one of them out")


def _identity(topic: str, paths: list[str], options: dict[str, object]) -> RunIdentity | None:
    """Return the run's identity; None for a run that cannot be continued.

    Links that are followed are no part of it: as with any other file of a folder, a new one is noticed.
    """
    if any(map(is_piped, paths)):
        return None
    return RunIdentity.of(topic, options, paths)


def _finish(
    settings: Settings, topic: str, paths: list[str], summary: Summary, *, then_flush: bool, as_json: bool
) -> None:
    say_refusals(summary)
    say_changed_sources(summary)
    say_unmet(summary)
    sent = summary.documents or summary.before
    if then_flush and sent:
        asyncio.run(flush(settings, topic))
    if not sent:
        raise InputError(f"there are no documents in {' '.join(paths)}; see --format, and the messages above if any")
    if summary.before:
        say(
            f"{count(summary.before, 'document')} of this run were in {topic} already"
            + ("" if summary.documents else "; to send all again on purpose: --restart")
        )
    if as_json:
        show_json(summary_json(summary))
    else:
        show(summary_line(summary))
        if not then_flush:
            say_open_tokens(settings, summary)
    if summary.broken:
        named = "what earlier calls of this run said, and above" if summary.broken_before else "above"
        raise InputError(f"{count(summary.broken, 'file')} could not be read to the end; see {named}")
    changed = sum(change.kind == "changed" for change in summary.left_out)
    if changed:
        raise InputError(
            f"{count(changed, 'source')} changed after being sent; --only-new left out what has changed, see above. "
            "Send it from a file of another name, or all again: --restart"
        )
