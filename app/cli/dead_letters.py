"""``tokenmill dead-letters`` and ``rejects``: what could not become a document, and what steps filtered out."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from tokenmill.errors import InputError

from ..funnel.retention import TriedDocument, beginning_of
from ..kafka.dead_letters import DeadLetter, Place, RecordPlace, parse_place
from ..settings import Settings
from ..tables import ShownTable, pairs
from ..tasks import until_interrupted
from ..terminal import escaped
from ..tools.inspect.duplicates import LaterCopy, copies_of
from ..tools.inspect.packed import packed_rejects, packed_streams
from ..tools.inspect.rejected import RejectedDocument, read_rejected
from ..tools.resend import ResendOutcome, ResendRequest, count_dead_letters, find_dead_letter, read_dead_letters, resend
from .figures import example_lines
from .options import RawTopic, SomeStreams, argument, command, option
from .output import All, AsJson, count, moment_of, say, show, show_json, show_table, size
from .progress import ProgressLine

LINE_CHARACTERS = 80  # of a value, where it is one of many

Record = Annotated[
    str,
    argument(
        "TOPIC/PARTITION/OFFSET of a record, or TOPIC:RUN:FILE:LINE of what produce read, as `list` prints them.",
        "PLACE",
    ),
]
Reasons = Annotated[list[str] | None, option("Only of this reason; may be given again.", "REASON", "--reason")]


@command("dead-letters list", "tokenmill dead-letters list raw-text --reason invalid_utf8")
def list_command(
    settings: Settings,
    topic: RawTopic,
    *,
    reasons: Reasons = None,
    partitions: Annotated[
        list[int] | None, option("Only of this partition; may be given again.", None, "--partition")
    ] = None,
    limit: Annotated[int, option("Show at most so many, the first ones.", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """Print the dead letters of a raw topic, the mill's and those of produce, each place once."""
    found, more = asyncio.run(_first(settings, topic, reasons or (), partitions or (), limit))
    if as_json:
        show_json([values(letter) for letter in found])
    else:
        show_table(letters_table(found))
    if not found:
        say(f"no record of {topic} is a dead letter{' of that kind' if reasons or partitions else ''}")
    if more:
        say(f"there are more than {limit}: --limit shows them, --reason and --partition choose")


async def _first(
    settings: Settings, topic: str, reasons: list[str] | tuple[()], partitions: list[int] | tuple[()], limit: int
) -> tuple[list[DeadLetter], bool]:
    chosen: dict[Place, DeadLetter] = {}
    async with aclosing(read_dead_letters(settings, topic)) as letters:
        async for found in letters:
            if not isinstance(found, DeadLetter) or found.place in chosen:
                continue
            partition = found.place.partition if isinstance(found.place, RecordPlace) else None
            if (reasons and found.reason not in reasons) or (partitions and partition not in partitions):
                continue
            if len(chosen) == limit:
                return list(chosen.values()), True
            chosen[found.place] = found
    return list(chosen.values()), False


@command("dead-letters count", "tokenmill dead-letters count raw-text")
def count_command(settings: Settings, topic: RawTopic, *, as_json: AsJson = False) -> None:
    """Print how many dead letters there are for each reason, each place counted once."""
    counts = asyncio.run(count_dead_letters(settings, topic))
    if as_json:
        numbers = {"records": counts.reasons.total(), "letters": counts.letters, "resent": counts.resent}
        show_json({"topic": topic, **numbers, "reasons": dict(counts.reasons)})
        return
    show_table(counts_table(counts.reasons))
    if counts.resent:
        say(f"{count(counts.resent, 'record')} of them were sent back")


@command("dead-letters show", "tokenmill dead-letters show raw-text/0/17 --value > value")
def show_command(
    settings: Settings,
    record: Record,
    *,
    value: Annotated[
        bool, option("Print the original value and nothing else; escaped on a terminal.", None, "--value")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print one dead letter: where it comes from, why it is here, and what was there."""
    letter = asyncio.run(find_dead_letter(settings, required_place(record)))
    if letter.whole_value is not None:
        kept, whole = len(letter.value or b""), letter.whole_value
        say(
            f"the letter has the first {size(kept)} of {size(whole.bytes)} (SHA-256 {whole.sha256}); the whole record "
            f"is where it was, {letter.place}, as long as its topic keeps it"
        )
    if value and sys.stdout.isatty():
        show((letter.value or b"").decode(errors="backslashreplace"))
        say("control characters are escaped on a terminal; the bytes as they are go into a file or a pipe")
    elif value:
        sys.stdout.buffer.write(letter.value or b"")
        sys.stdout.buffer.flush()
    elif as_json:
        show_json(letter.as_json())
    else:
        facts = {
            **values(letter),
            "written": moment_of(letter.timestamp),
            "value": f"{(letter.value or b'')[:LINE_CHARACTERS]!r}",
        }
        show_table(pairs(facts))


@command(
    "dead-letters resend",
    "tokenmill dead-letters resend raw-text --reason skipped --dry-run",
    "iconv -f latin1 -t utf8 value | tokenmill dead-letters resend raw-text/0/17 --value -",
)
def resend_command(
    settings: Settings,
    what: Annotated[str, argument("RAW_TOPIC, with --reason, or one place, as for show.", "WHAT")],
    *,
    reasons: Reasons = None,
    value: Annotated[
        str | None, option("Of one record: send the bytes of this file (-: standard input) instead.", "FILE")
    ] = None,
    again: Annotated[bool, option("Also what was sent back before.", None, "--again")] = False,
    dry_run: Annotated[bool, option("Count, send nothing.", None, "--dry-run")] = False,
    as_json: AsJson = False,
) -> None:
    """Send records back to their raw topic: one, as it was or repaired, or all of a reason as they were.

    They get new offsets in their old partitions, and a header tokenmill.resent-from that names the old ones. A record
    that is sent as it was ends here again, unless what refused it has changed: the skip list, or a stream of its own.
    What produce refused goes to a partition that its place decides, without a key.
    """
    request = _request(what, reasons, value, again=again)
    done = ResendOutcome()
    with ProgressLine("reading") as line:

        def report() -> None:
            line.show(f"{count(done.sent, 'record')}, {size(done.bytes)}")

        _, interrupted = until_interrupted(resend(settings, request, done, dry_run=dry_run, progress=report))
    if interrupted is not None:
        sent = "counted" if dry_run else "sent back"
        say(f"interrupted, with {count(done.sent, 'record')} {sent}; the same command goes on with the others")
        sys.exit(128 + interrupted)
    if as_json:
        numbers = {"sent": done.sent, "bytes": done.bytes, "sent_before": done.before}
        show_json({**numbers, "without_value": done.without_value, "dry_run": dry_run})
        return
    verb = "would send" if dry_run else "sent"
    show(f"{verb} {count(done.sent, 'record')}, {size(done.bytes)}, to {request.raw_topic}")
    if done.without_value:
        left_out = count(done.without_value, "dead letter")
        say(f"left out {left_out} whose value is missing or cut off: resend each with --value FILE")
    if done.before:
        say(f"left out {count(done.before, 'record')}, sent back before: --again sends them once more")


@command("rejects", "tokenmill rejects", "tokenmill rejects --reason gopher_quality.gopher_short_doc")
def rejects_command(
    settings: Settings,
    *,
    streams: SomeStreams = None,
    reasons: Reasons = None,
    limit: Annotated[int, option("Show at most so many of each reason, the first ones.", min=1)] = 5,
    of: Annotated[
        str | None,
        option("Show where this kept document came again, TOPIC/PARTITION/OFFSET, and nothing else.", "PLACE"),
    ] = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """Show documents that steps filtered out, with the numbers that decided.

    They are read again from the raw topic, from its beginning until there are enough of each reason that
    `tokenmill ledger` counts: of a rare reason, all of it may have to be read. --all shows more of each text, --json
    the whole. --of reads the verdicts on duplicates of a service, and no text.
    """
    if of is not None:
        _show_copies(settings, of, reasons or (), limit, as_json=as_json)
        return
    read: Counter[str] = Counter()
    with ProgressLine("reading") as progress:

        def report(records: int, value_bytes: int) -> None:
            read.update(records=records, bytes=value_bytes)
            progress.show(f"read {count(read['records'], 'record')}, {size(read['bytes'])}")

        found = asyncio.run(_rejected(settings, streams or (), reasons or (), limit, report))
    if as_json:
        show_json([rejected_values(one) for one in found])
        return
    by_reason: dict[tuple[str, str], list[TriedDocument]] = {}
    for one in found:
        tried = TriedDocument(str(one.place), one.detail, beginning_of(one.document.text))
        by_reason.setdefault((one.stream, one.reason), []).append(tried)
    for (stream, reason), documents in by_reason.items():
        for line in example_lines(f"{stream}, {reason}", documents, whole=everything):
            show(line)
    if not found:
        say("no document was filtered out, or the topics no longer hold those that were")


def _show_copies(settings: Settings, of: str, reasons: Sequence[str], limit: int, *, as_json: bool) -> None:
    place = required_place(of)
    if not isinstance(place, RecordPlace):
        raise InputError(f"--of {of} is no record: write TOPIC/PARTITION/OFFSET")
    found = [one for one in asyncio.run(copies_of(settings, place)) if not reasons or one.reason in reasons]
    counted = Counter[str]()
    shown = [one for one in found if counted.update([one.reason]) is None and counted[one.reason] <= limit]
    if as_json:
        show_json([{**one.place._asdict(), "reason": one.reason} for one in shown])
        return
    show_table(copies_table(shown))
    say(f"{place} came again {count(len(found), 'time')}")


def copies_table(copies: Iterable[LaterCopy]) -> ShownTable:
    """Return a row for each copy of a document."""
    return ShownTable(("place", "reason"), ((str(one.place), one.reason) for one in copies))


async def _rejected(
    settings: Settings, streams: Sequence[str], reasons: Sequence[str], limit: int, report: Callable[[int, int], None]
) -> list[RejectedDocument]:
    if packed := packed_streams(settings, streams):
        return list(packed_rejects(settings, packed, reasons=reasons, limit=limit))
    found = read_rejected(settings, streams, reasons=reasons, limit=limit, progress=report)
    return [one async for one in found]


def rejected_values(found: RejectedDocument) -> dict[str, Any]:
    """Return a document that was filtered out as JSON types."""
    document = found.document
    return {
        "stream": found.stream,
        **found.place._asdict(),
        "timestamp": found.timestamp,
        "reason": found.reason,
        "detail": found.detail,
        "id": document.id,
        "fields": dict(document.fields),
        "text": document.text,
    }


def _request(what: str, reasons: list[str] | None, value: str | None, *, again: bool) -> ResendRequest:
    place = parse_place(what)
    if place is None:
        if not reasons:
            raise InputError(f"resend {what}: add --reason, or name one record, {what}/PARTITION/OFFSET")
        if value is not None:
            raise InputError("--value replaces the value of one record: name it, TOPIC/PARTITION/OFFSET")
        return ResendRequest(what, reasons=reasons, again=again)
    if reasons:
        raise InputError(f"{what} is one record: leave out --reason, or name the raw topic {place.topic}")
    replaced = {} if value is None else {place: _bytes_of(value)}
    return ResendRequest(place.topic, places=[place], values=replaced, again=again)


def _bytes_of(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): name a file with the repaired value") from error


def required_place(name: str) -> Place:
    """Return the place that a person named. Raises InputError where it is none."""
    place = parse_place(name)
    if place is None:
        raise InputError(
            f"{name!r} is no place: write TOPIC/PARTITION/OFFSET, or TOPIC:RUN:FILE:LINE, as `tokenmill dead-letters "
            "list` does"
        )
    return place


def counts_table(reasons: Counter[str]) -> ShownTable:
    """Return a row for each reason, and one for all of them."""
    return ShownTable(("reason", "records"), [*reasons.most_common(), ("in all", reasons.total())])


def letters_table(letters: Iterable[DeadLetter]) -> ShownTable:
    """Return a row for each letter."""
    rows = []
    for letter in letters:
        value = beginning_of(repr((letter.value or b"")[:LINE_CHARACTERS]), LINE_CHARACTERS)
        detail = beginning_of(escaped(letter.detail), LINE_CHARACTERS)
        rows.append((str(letter.place), moment_of(letter.timestamp), letter.reason, f"{detail} {value}".strip()))
    return ShownTable(("place", "written", "reason", "detail and value"), rows, words=True)


def values(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as JSON types, without its value, and with its key as text."""
    told = letter.as_json()
    del told["value"]
    return {**told, "key": None if letter.key is None else letter.key.decode(errors="replace")}
