"""``tokenmill produce`` and ``tokenmill flush``: text into a raw topic."""

import asyncio
from typing import Annotated, Literal

import typer

from tokenmill.errors import InputError

from ..produce import Plan, Summary, flush, options_for, produce, read_sources
from ..settings import Settings
from ..settings.values import parse_size
from .options import examples, with_settings
from .output import AsJson, count, say, show, show_json, size
from .progress import Reporter

SHOWN_PARTITIONS = 8  # in the last line; more are summed up, --json has all
SHOWN_REFUSALS = 5

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The raw topic.", show_default=False)]
Paths = Annotated[
    list[str], typer.Argument(metavar="PATH", help="Files, folders, or - for standard input.", show_default=False)
]
FormatName = Annotated[
    Literal["auto", "jsonl", "text", "lines"],
    typer.Option("--format", help="auto: .jsonl and .ndjson are JSON lines, any other file is a text document."),
]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of a text is a document: --format lines.")]
Plain = Annotated[bool, typer.Option("--plain", help="Send the text alone, no JSON object with an id around it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "produce",
        epilog=examples(
            "tokenmill produce raw-text corpus.jsonl notes/",
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
    plain: Plain = False,
    rate: Annotated[str | None, typer.Option(metavar="SIZE", help="Send at most this much a second: 2MB.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Send at most this many documents.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Equal values share a partition; without it documents are spread evenly."),
    ] = None,
    on_error: Annotated[
        Literal["skip", "fail"], typer.Option(help="What a document that cannot be used does to the run.")
    ] = "skip",
    as_json: AsJson = False,
) -> None:
    """Send documents to a raw topic; at the end each is acknowledged by Kafka, once.

    JSON lines go as they are; another text file is one document, {"id": path, "text": …}. Folders are read recursively.
    """
    options = options_for(settings, topic, plain=plain, key=key)
    items = read_sources(paths, options, "lines" if lines else format_name)
    plan = Plan(rate=parse_rate(rate), limit=limit, key=key, id_field=options.id_field, fail=on_error == "fail")
    with Reporter() as report:
        summary = asyncio.run(produce(settings, topic, items, plan, report))
    tell_refusals(summary)
    if not summary.documents:
        raise InputError(f"there are no documents in {' '.join(paths)}; see --format, and the messages above if any")
    if as_json:
        show_json(summary_json(summary))
    else:
        show(summary_line(summary))


def flush_command(settings: Settings, topic: Topic) -> None:
    """Ask the mill to fill the open blocks of a raw topic with padding, so that its last tokens become trainable.

    Writes one record to each partition, behind all documents that are there.
    """
    partitions = asyncio.run(flush(settings, topic))
    say(f"asked {count(partitions, 'partition')} of {topic} to fill their open blocks")


def parse_rate(rate: str | None) -> float | None:
    """Return bytes a second of ``2MB`` or ``2MB/s``.

    Raises:
        typer.BadParameter: it is no such size.

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


def tell_refusals(summary: Summary) -> None:
    """Name the first documents that were passed over, and how many there were."""
    for refused in summary.examples[:SHOWN_REFUSALS]:
        say(f"{refused.where}: {refused.why}")
    if summary.refused > SHOWN_REFUSALS:
        say(f"… passed over {summary.refused:,} in all")


def summary_line(summary: Summary) -> str:
    """Return one line: what was sent, and how it spread over the partitions."""
    total = (
        f"{count(summary.documents, 'document')}, {size(summary.bytes)} to {summary.topic} in {summary.seconds:.1f} s"
    )
    parts = [f"{number}: {sent.documents:,} ({size(sent.bytes)})" for number, sent in summary.partitions.items()]
    if len(parts) > SHOWN_PARTITIONS:
        counts = [sent.documents for sent in summary.partitions.values()]
        return f"{total}; {len(parts)} partitions of {min(counts):,} to {max(counts):,} documents"
    return f"{total}; by partition {', '.join(parts)}"


def summary_json(summary: Summary) -> dict[str, object]:
    """Return the summary as JSON types."""
    partitions = [
        {"partition": number, "documents": sent.documents, "bytes": sent.bytes}
        for number, sent in summary.partitions.items()
    ]
    return {
        "topic": summary.topic,
        "documents": summary.documents,
        "bytes": summary.bytes,
        "seconds": round(summary.seconds, 3),
        "refused": summary.refused,
        "partitions": partitions,
    }
