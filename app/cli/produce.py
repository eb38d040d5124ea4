"""``tokenmill produce`` and ``tokenmill flush``: text into a raw topic."""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

import typer
from aiokafka import TopicPartition

from tokenmill.errors import InputError
from tokenmill.packings import SEPARATE

from ..broker_contact import transaction_words
from ..kafka.clients import open_transactions
from ..settings import Settings
from ..settings.values import parse_size
from ..sources import is_piped
from ..sources.datasets import DatasetInfo
from ..tasks import until_interrupted
from ..tools.inspect.packed import packed_streams
from ..tools.produce.dask_lanes import LaneTask, produce_on_dask, require_lanes
from ..tools.produce.producing import RunPlan, flush, produce, require_flush_allowed
from ..tools.produce.sending import COUNTED, DryRunResult, Summary, dry_run
from . import reading_options as files
from .options import AsJson, RawTopic, command, panel
from .output import count, say, show, show_json, size, with_outage_messages

SHOWN_PARTITIONS: Final = 8  # in the last line; more are summed up, --json has all
SHOWN_CHARACTERS: Final = 200  # of a sample's value

_how = panel("How it is sent")
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@command(
    "produce",
    "tokenmill produce raw-text corpus.jsonl notes/",
    "tokenmill produce raw-text 'data/*.parquet' --field code --id-field path --where language=Python",
    "tokenmill produce raw-text book.txt --lines --rate 2MB",
    "cat corpus.jsonl | tokenmill produce raw-text - --key id",
)
@files.with_reading()
def produce_command(
    settings: Settings,
    topic: RawTopic,
    paths: files.Paths,
    *,
    choice: files.SourceChoice,
    rate: Annotated[str | None, _how("Send at most this much a second: 2MB.", "SIZE")] = None,
    compression: Annotated[Codec, _how(f"Codec of the batches: {', '.join(get_args(Codec))}.", "NAME")] = "none",
    resume: Annotated[bool, _how("The same command goes on where it was interrupted.")] = True,
    restart: Annotated[bool, _how("Send all again, on purpose.")] = False,
    only_new: Annotated[
        bool, _how("Send what was added since: new files, and what files of lines got at their end.")
    ] = False,
    dask: Annotated[str | None, _how("Send from all workers of this Dask cluster: tcp://host:8786.", "ADDRESS")] = None,
    then_flush: Annotated[bool, _how("Then ask the mill to fill its open blocks.", None, "--flush")] = False,
    metrics_port: Annotated[int | None, _how("Serve metrics of the run at this port of metrics_host.", "PORT")] = None,
    dry: Annotated[bool, _how("Send nothing; tell what would be sent.", None, "--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Send documents to a raw topic. When this ends with 0, Kafka has acknowledged each of them, once.

    JSON objects go as they are; a text file is one document, {"id": path, "text": …}; so is a row of a table, with the
    fields that are named. Folders and zip archives are read file by file; .gz, .zst, .bz2 and .xz files are
    decompressed. Interrupted, the same command goes on where it was.
    """
    if only_new and (restart or not resume or any(map(is_piped, paths))):
        other = "--restart" if restart else "standard input or a pipe" if resume else "--no-resume"
        raise InputError(f"--only-new goes on behind what was sent before; {other} does not: leave one of them out")
    if then_flush:
        require_flush_allowed(settings, topic)
    with choice.opened(settings, topic, paths) as (reading, sources):
        if dry:
            _show_dry_run(asyncio.run(dry_run(sources, topic, choice.plan)), paths, as_json=as_json)
            return
        plan = RunPlan(
            **asdict(choice.plan) | {"identity": choice.identity(topic, paths, reading) if resume else None},
            rate=parse_rate(rate),
            compression=None if compression == "none" else compression,
            restart=restart,
            only_new=only_new,
        )
        from ..telemetry.server import run_served  # noqa: PLC0415 - a server, for those who ask for it

        with files.ProduceProgress() as report, run_served(settings, metrics_port, lambda: report.latest):
            work: Coroutine[Any, Any, Summary]
            if dask is None:
                work = produce(settings, topic, sources, plan, report)
            else:
                require_lanes(paths, plan)
                opened = partial(choice.opened, settings.without_secrets(), topic, paths)
                task = LaneTask(0, settings, topic, tuple(paths), opened, choice.options(reading), plan)
                work = asyncio.to_thread(produce_on_dask, dask, task, sources, report)
            work_shown = with_outage_messages(work, settings.bootstrap_servers, report.say)
            summary, interrupted = until_interrupted(work_shown)
    if summary is None or interrupted is not None:
        say(_interrupted_line(report.latest, topic, goes_on=plan.identity is not None))
        sys.exit(128 + (interrupted or signal.SIGINT))
    _finish(settings, topic, paths, summary, then_flush=then_flush, as_json=as_json)


@command("flush", "tokenmill flush raw-text")
def flush_command(settings: Settings, topic: RawTopic) -> None:
    """Ask the mill to fill the open blocks of a raw topic with padding, so that its last tokens become trainable.

    Writes one record to each partition, behind all documents that are there. Refused where the streams of the topic
    have allow_flush = false: such a record would be a tombstone.
    """
    if any(stored.settled.stream.raw_topic == topic for stored in packed_streams(settings)):
        raise InputError(
            f"{topic} in {settings.store} was packed from files: `tokenmill pack … --flush` fills its blocks"
        )
    partitions = _flush(settings, topic)
    say(f"asked {count(partitions, 'partition')} of {topic} to fill their open blocks")


def _flush(settings: Settings, topic: str) -> int:
    partitions = asyncio.run(flush(settings, topic))
    held = open_transactions(settings, [TopicPartition(topic, number) for number in range(partitions)])
    for tp, since in asyncio.run(held).items():
        say(f"{topic}[{tp.partition}]: {transaction_words(since)}")
    return partitions


def parse_rate(rate: str | None) -> float | None:
    """Return bytes a second of ``2MB`` or ``2MB/s``; raises typer.BadParameter where it is no size, or below one."""
    if rate is None:
        return None
    try:
        value = parse_size(rate.removesuffix("/s"))
    except ValueError as error:
        raise typer.BadParameter(f"{rate!r} is no rate: write a size like 2MB or 500kB", param_hint="--rate") from error
    if value < 1:
        raise typer.BadParameter(f"{rate!r} would never end: give it 1 byte a second or more", param_hint="--rate")
    return value


def _finish(
    settings: Settings, topic: str, paths: list[str], summary: Summary, *, then_flush: bool, as_json: bool
) -> None:
    files.say_refusals(summary, summary.told)
    changed = [f"{change.text}: nothing of it is sent again" for change in summary.left_out]
    files.say_first(changed, len(changed), "{} such sources")
    sent = summary.documents or summary.before
    if then_flush and sent:
        _flush(settings, topic)
    files.require_documents(paths, sent)
    if summary.before:
        say(
            f"{count(summary.before, 'document')} of this run were in {topic} already"
            + ("" if summary.documents else "; to send all again on purpose: --restart")
        )
    if as_json:
        show_json(files.summary_json(summary))
    else:
        show(_summary_line(summary))
        if summary.documents and not then_flush:
            _say_open_tokens(settings, summary)
    files.require_whole(
        summary.broken, "what earlier calls of this run said, and above" if summary.broken_before else "above"
    )
    if lost := sum(change.kind == "changed" for change in summary.left_out):
        raise InputError(
            f"{count(lost, 'source')} changed after being sent; --only-new left out what has changed, see above. "
            "Send it from a file of another name, or all again: --restart"
        )


def _say_open_tokens(settings: Settings, summary: Summary) -> None:
    """Say how many tokens may wait for a block to be full, and what to do about it; nothing for a foreign topic."""
    streams = [stream for stream in settings.streams() if stream.raw_topic == summary.topic]
    own = settings.for_topic(summary.topic) if streams else None
    if own is not None and summary.partitions and own.packing_name not in SEPARATE:
        allowed, most = own.allow_flush, len(streams) * len(summary.partitions) * own.sequence_length
        then = f"`tokenmill flush {summary.topic}` fills it with padding" if allowed else "more text fills it"
        say(f"the last tokens, at most {most:,}, wait until their block is full; {then}")


def _interrupted_line(summary: Summary | None, topic: str, *, goes_on: bool) -> str:
    done = 0 if summary is None else summary.documents
    before = 0 if summary is None else summary.before
    line = f"interrupted: {count(done, 'document')} of this call {'is' if done == 1 else 'are'} acknowledged in {topic}"
    line += f", and {before:,} of earlier ones" if before else ""
    return line + ("; the same command goes on there" if goes_on else "; another call sends all again")


def _summary_line(summary: Summary) -> str:
    total = (
        f"{count(summary.documents, 'document')}, {size(summary.bytes)} to {summary.topic} in {summary.seconds:.1f} s"
    )
    parts = [f"{number}: {sent.documents:,} ({size(sent.bytes)})" for number, sent in summary.partitions.items()]
    if len(parts) > SHOWN_PARTITIONS:
        counts = [sent.documents for sent in summary.partitions.values()]
        return f"{total}; {len(parts)} partitions of {min(counts):,} to {max(counts):,} documents"
    return f"{total}; by partition {', '.join(parts)}"


def _show_dry_run(found: DryRunResult, paths: Sequence[str], *, as_json: bool) -> None:
    """Show what would be sent; raises InputError where nothing would be, or a file cannot be read to its end."""
    files.say_refusals(found)
    if as_json:
        counts = {name: getattr(found, name) for name in ("documents", "bytes", *COUNTED)}
        samples = [item.value.decode(errors="replace") for item in found.samples]
        show_json({**counts, "data_sets": list(map(_known_json, found.known)), "samples": samples})
    else:
        for known in found.known:
            for line in _known_lines(known):
                show(line)
        for item in found.samples:
            shown = item.value[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
            show(shown[:SHOWN_CHARACTERS] + ("…" if len(shown) > SHOWN_CHARACTERS else ""))
        show(f"{count(found.documents, 'document')}, {size(found.bytes)} would be sent to {found.topic}; nothing was")
    files.require_documents(paths, found.documents)
    files.require_whole(found.broken)


def _known_lines(known: DatasetInfo) -> list[str]:
    if known.why_not:
        return [f"{known.name}: nothing is known of it ({known.why_not})"]
    features = "not known before it is read"
    if known.features is not None:
        features = ", ".join(f"{name} ({kind})" for name, kind in known.features.items())
    files = f"; files of {size(known.download)}" if known.download else ""
    return [f"{known.name}: features {features}{files}"] + [
        f"  {split}: {'rows not known' if part.rows is None else count(part.rows, 'row')}"
        + ("" if part.bytes is None else f", {size(part.bytes)}")
        for split, part in known.splits.items()
    ]


def _known_json(known: DatasetInfo) -> dict[str, Any]:
    return {
        "name": known.name,
        "features": known.features,
        "splits": {split: part._asdict() for split, part in known.splits.items()},
        "download_bytes": known.download,
        **({"unknown": known.why_not} if known.why_not else {}),
    }
