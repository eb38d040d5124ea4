"""What `produce` tells in the end: where the documents went, what was passed over, and what may still wait."""

from typing import Any

from tokenmill.errors import InputError

from ..produce import Dry, PassedOver, Summary
from ..settings import Settings
from .output import count, say, show, show_json, size

SHOWN_PARTITIONS = 8  # in the last line; more are summed up, --json has all
SHOWN_REFUSALS = 5
SHOWN_CHARACTERS = 200  # of a sample's value


def tell_open(settings: Settings, summary: Summary) -> None:
    """Say how many tokens may wait for a block to be full, and what to do about it; nothing for a foreign topic."""
    streams = [stream for stream in settings.streams() if stream.raw_topic == summary.topic]
    most = len(streams) * len(summary.partitions) * settings.for_topic(summary.topic).sequence_length if streams else 0
    if most:
        say(f"the last {most:,} tokens or less wait in open blocks; to fill these: tokenmill flush {summary.topic}")


def tell_refusals(found: PassedOver) -> None:
    """Name the first documents that were passed over, and how many there were."""
    shown = found.examples[:SHOWN_REFUSALS]
    for refused in shown:
        say(f"{refused.where}: {refused.why}")
    if found.refused > len(shown):
        say(f"… passed over {found.refused:,} in all")


def tell_left_out(summary: Summary) -> None:
    """Name the sources that are not what they were when they were sent."""
    for change in summary.left_out[:SHOWN_REFUSALS]:
        say(f"{change.text}: nothing of it is sent again")
    if len(summary.left_out) > SHOWN_REFUSALS:
        say(f"… {len(summary.left_out):,} such sources in all")


def interrupted_line(summary: Summary | None, topic: str, *, goes_on: bool) -> str:
    """Return what a person should know whose run was interrupted."""
    done = 0 if summary is None else summary.documents
    before = 0 if summary is None else summary.before
    line = f"interrupted: {count(done, 'document')} of this call {'is' if done == 1 else 'are'} acknowledged in {topic}"
    line += f", and {before:,} of earlier ones" if before else ""
    return line + ("; the same command goes on there" if goes_on else "; another call sends all again")


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


def summary_json(summary: Summary) -> dict[str, Any]:
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
        "before": summary.before,
        "refused": summary.refused,
        "broken": summary.broken,
        "partitions": partitions,
    }


def tell_dry(found: Dry, *, as_json: bool) -> None:
    """Show what would be sent.

    Raises:
        InputError: nothing would be, or a file cannot be read to its end.

    """
    tell_refusals(found)
    if as_json:
        samples = [item.value.decode(errors="replace") for item in found.samples]
        show_json({"documents": found.documents, "bytes": found.bytes, "refused": found.refused, "samples": samples})
    else:
        for item in found.samples:
            shown = item.value[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
            show(shown[:SHOWN_CHARACTERS] + ("…" if len(shown) > SHOWN_CHARACTERS else ""))
        show(f"{count(found.documents, 'document')}, {size(found.bytes)} would be sent to {found.topic}; nothing was")
    if not found.documents or found.broken:
        raise InputError(
            "there are files that cannot be used as they are" if found.broken else "there are no documents"
        )
