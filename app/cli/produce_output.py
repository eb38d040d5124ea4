"""What `produce` says: its progress, where the documents went, what was passed over, and what may still wait."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tokenmill.errors import InputError
from tokenmill.packings import SEPARATE

from ..settings import Settings
from ..sources import FolderWalk
from ..sources.datasets import DatasetInfo
from ..tools.produce import DryRunResult, PassedOver, Summary
from .output import count, say, show, show_json, size
from .progress import ProgressLine

SHOWN_PARTITIONS = 8  # in the last line; more are summed up, --json has all
SHOWN_REFUSALS = 5
SHOWN_CHARACTERS = 200  # of a sample's value


def say_open_tokens(settings: Settings, summary: Summary) -> None:
    """Say how many tokens may wait for a block to be full, and what to do about it; nothing for a foreign topic."""
    streams = [stream for stream in settings.streams() if stream.raw_topic == summary.topic]
    own = settings.for_topic(summary.topic) if streams else None
    if own is not None and summary.partitions and own.packing_name not in SEPARATE:
        allowed, most = own.allow_flush, len(streams) * len(summary.partitions) * own.sequence_length
        then = f"`tokenmill flush {summary.topic}` fills it with padding" if allowed else "more text fills it"
        say(f"the last tokens, at most {most:,}, wait until their block is full; {then}")


def _say_first(texts: Sequence[str], number: int, rest: str, told: int = 0) -> None:
    """Say the first texts, but for those that are ``told``, and how many there are in all."""
    shown = texts[:SHOWN_REFUSALS]
    for text in shown[told:]:
        say(text)
    if number > len(shown):  # an earlier call showed the others
        say(f"… {rest.format(f'{number:,}')} in all")


def say_refusals(found: PassedOver, told: int = 0) -> None:
    """Name the first documents that were passed over, of which some are ``told``, and how many there were."""
    _say_first([f"{one.where}: {one.why}" for one in found.examples], found.refused, "passed over {}", told)
    if found.over:
        say(f"{', '.join(f'{number:,} over {name}' for name, number in found.over.items())}: a higher limit takes them")


def say_not_read(walk: FolderWalk) -> None:
    """Name what is in folders and not read: pipes, devices, links that lead elsewhere."""
    _say_first(walk.left_out, len(walk.left_out), "left out {}")


def say_changed_sources(summary: Summary) -> None:
    """Name the sources that have changed since they were sent."""
    texts = [f"{change.text}: nothing of it is sent again" for change in summary.left_out]
    _say_first(texts, len(texts), "{} such sources")


def say_unmet(found: PassedOver) -> None:
    """Say how many documents did not meet the conditions, how many of these lack the field, and which have no id."""
    if found.unmet:
        without = f", {found.without_field:,} of them without its field" if found.without_field else ""
        say(f"--where left out {count(found.unmet, 'document')}{without}")
    if found.unnamed:
        say(
            f"{count(found.unnamed, 'document')} without an id: the field is not there, or neither a text nor a whole "
            "number; rows are called after file and row, and --id-field names another field"
        )


def interrupted_line(summary: Summary | None, topic: str, *, goes_on: bool) -> str:
    """Return the message for a run that was interrupted."""
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
        "unmet": summary.unmet,
        "without_field": summary.without_field,
        "partitions": partitions,
    }


def require_documents(paths: Sequence[str], documents: int) -> None:
    """Raise `InputError` where there was no document."""
    if not documents:
        raise InputError(f"there are no documents in {' '.join(paths)}; see --format, and the messages above if any")


def require_whole(broken: int, told: str = "above") -> None:
    """Raise `InputError` where files could not be read to their ends; ``told`` is where each was named."""
    if broken:
        raise InputError(f"{count(broken, 'file')} could not be read to the end; see {told}")


def show_dry_run(found: DryRunResult, paths: Sequence[str], *, as_json: bool) -> None:
    """Show what would be sent.

    Raises InputError where nothing would be, or a file cannot be read to its end: what a run says then.
    """
    say_refusals(found)
    say_unmet(found)
    if as_json:
        show_json(_dry_json(found))
    else:
        for known in found.known:
            for line in _known_lines(known):
                show(line)
        for item in found.samples:
            shown = item.value[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
            show(shown[:SHOWN_CHARACTERS] + ("…" if len(shown) > SHOWN_CHARACTERS else ""))
        show(f"{count(found.documents, 'document')}, {size(found.bytes)} would be sent to {found.topic}; nothing was")
    require_documents(paths, found.documents)
    require_whole(found.broken)


def _dry_json(found: DryRunResult) -> dict[str, Any]:
    return {
        "documents": found.documents,
        "bytes": found.bytes,
        "refused": found.refused,
        "broken": found.broken,
        "unmet": found.unmet,
        "without_field": found.without_field,
        "data_sets": [_known_json(known) for known in found.known],
        "samples": [item.value.decode(errors="replace") for item in found.samples],
    }


def _known_lines(known: DatasetInfo) -> list[str]:
    """Return what is known of a data set, a line for its features and one for each split."""
    if known.why_not:
        return [f"{known.name}: nothing is known of it ({known.why_not})"]
    features = (
        "not known before it is read"
        if known.features is None
        else ", ".join(f"{name} ({kind})" for name, kind in known.features.items())
    )
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


class ProduceProgress(ProgressLine):
    """Shows the progress of a run: called with its summary.

    The bar ends at the run's limit if there is one, else at the end of all files, if their sizes are known; with both,
    it shows the one that is closer to its end. The time that is left is estimated by it.
    """

    def __init__(self) -> None:
        super().__init__("starting")
        self._began = time.monotonic()
        self._done_before: int | None = None
        self.latest: Summary | None = None
        """The summary of the last call; its numbers go on growing."""

    def __call__(self, summary: Summary) -> None:
        """Show how far the run is."""
        self.latest = summary
        for refused in summary.examples[summary.told : SHOWN_REFUSALS]:  # at once: a run may take hours
            summary.told += 1
            self.say(f"{refused.where}: {refused.why}")
        rate = summary.bytes / summary.seconds if summary.seconds else 0.0
        line = f"{count(summary.documents, 'document')}, {size(summary.bytes)}, {size(rate)}/s"
        line += f", {summary.refused:,} passed over" if summary.refused else ""
        described = f"{summary.topic}: {line}"
        done, total = _done(summary)
        self.show(described, done, total, lambda: line + self._left(summary, done, total))

    def _left(self, summary: Summary, done: int, total: int) -> str:
        """Return how much is done and how long the rest takes; empty if that is unknown."""
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
