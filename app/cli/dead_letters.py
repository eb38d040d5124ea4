"""``tokenmill dead-letters``, ``rejects``, ``skip`` and ``ignore``: records that fail; ``eras`` and ``close``."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from tokenmill.eras import Era, EraFollower, EraLog
from tokenmill.errors import InputError
from tokenmill.store import open_eras
from tokenmill.store.layout import SOURCE_FILE, ending

from ..funnel import TriedDocument, beginning_of
from ..kafka.clients import consumer
from ..kafka.control_topic import read_eras, settled_stream, write_control
from ..kafka.dead_letters import DeadLetter, Place, RecordPlace, parse_place
from ..mill.era_closing import EraCloser, Extents
from ..settings import Settings
from ..tables import ShownTable, pairs
from ..tasks import until_interrupted
from ..terminal import escaped
from ..tools import failed_records
from ..tools.failed_records import ResendOutcome, ResendRequest
from ..tools.inspect.duplicates import Copies, copies_of
from ..tools.inspect.packed import StoredPack, packed_rejects, packed_streams
from ..tools.inspect.tracing import RejectedDocument, read_rejected
from .options import All, AsJson, DryRun, OneStream, RawTopic, SomeStreams, Yes, argument, command, option
from .output import ProgressLine, agree, asks, count, moment_of, say, show, show_examples, show_json, show_table, size

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
        show_table(_letters_table(found))
    if not found:
        say(f"no record of {topic} is a dead letter{' of that kind' if reasons or partitions else ''}")
    if more:
        say(f"there are more than {limit}: --limit shows them, --reason and --partition choose")


async def _first(
    settings: Settings, topic: str, reasons: list[str] | tuple[()], partitions: list[int] | tuple[()], limit: int
) -> tuple[list[DeadLetter], bool]:
    chosen: dict[Place, DeadLetter] = {}
    async with aclosing(failed_records.read_dead_letters(settings, topic)) as letters:
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
    counts = asyncio.run(failed_records.count_dead_letters(settings, topic))
    if as_json:
        numbers = {"records": counts.reasons.total(), "letters": counts.letters, "resent": counts.resent}
        show_json({"topic": topic, **numbers, "reasons": dict(counts.reasons)})
        return
    show_table(_counts_table(counts.reasons))
    if counts.resent:
        say(f"{count(counts.resent, 'record')} of them were sent back")


@command("dead-letters show", "tokenmill dead-letters show raw-text/0/17 --value > value")
def show_command(
    settings: Settings,
    record: Record,
    *,
    value: Annotated[bool, option("Print the original value and nothing else; escaped on a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print one dead letter: where it comes from, why it is here, and what was there."""
    letter = asyncio.run(failed_records.find_dead_letter(settings, _required_place(record)))
    content, whole = letter.value or b"", letter.whole_value
    if whole is not None:
        say(
            f"the letter has the first {size(len(content))} of {size(whole.bytes)} (SHA-256 {whole.sha256}); the whole "
            f"record is where it was, {letter.place}, as long as its topic keeps it"
        )
    if value and sys.stdout.isatty():
        show(content.decode(errors="backslashreplace"))
        say("control characters are escaped on a terminal; the bytes as they are go into a file or a pipe")
    elif value:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    elif as_json:
        show_json(letter.as_json())
    else:
        facts = {"written": moment_of(letter.timestamp), "value": repr(content[:LINE_CHARACTERS])}
        show_table(pairs(values(letter) | facts))


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
    again: Annotated[bool, option("Also what was sent back before.")] = False,
    dry_run: Annotated[bool, option("Count, send nothing.")] = False,
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

        _, interrupted = until_interrupted(
            failed_records.resend(settings, request, done, dry_run=dry_run, progress=report)
        )
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
        show_json([_rejected_values(one) for one in found])
        return
    by_reason: dict[tuple[str, str], list[TriedDocument]] = {}
    for one in found:
        tried = TriedDocument(str(one.place), one.detail, beginning_of(one.document.text))
        by_reason.setdefault((one.stream, one.reason), []).append(tried)
    for (stream, reason), documents in by_reason.items():
        show_examples(f"{stream}, {reason}", documents, whole=everything)
    if not found:
        say("no document was filtered out, or the topics no longer hold those that were")


def _show_copies(settings: Settings, of: str, reasons: Sequence[str], limit: int, *, as_json: bool) -> None:
    place = _required_place(of)
    if not isinstance(place, RecordPlace):
        raise InputError(f"--of {of} is no record: write TOPIC/PARTITION/OFFSET")
    found = [one for one in asyncio.run(copies_of(settings, place)) if not reasons or one[1] in reasons]
    counted = Counter[str]()
    shown = [one for one in found if counted.update([one[1]]) is None and counted[one[1]] <= limit]
    if as_json:
        show_json([{**copy._asdict(), "reason": reason} for copy, reason in shown])
        return
    show_table(_copies_table(shown))
    told = f"; `tokenmill inspect message {' '.join(map(str, place))}` says whether it was kept" if not found else ""
    say(f"{place} came again {count(len(found), 'time')}{told}")


def _copies_table(copies: Copies) -> ShownTable:
    return ShownTable(("place", "reason"), ((str(place), reason) for place, reason in copies))


async def _rejected(
    settings: Settings, streams: Sequence[str], reasons: Sequence[str], limit: int, report: Callable[[int, int], None]
) -> list[RejectedDocument]:
    if packed := packed_streams(settings, streams):
        return list(packed_rejects(settings, packed, reasons=reasons, limit=limit))
    found = read_rejected(settings, streams, reasons=reasons, limit=limit, progress=report)
    return [one async for one in found]


def _rejected_values(found: RejectedDocument) -> dict[str, Any]:
    document = {"id": found.document.id, "fields": dict(found.document.fields), "text": found.document.text}
    why = {"timestamp": found.timestamp, "reason": found.reason, "detail": found.detail}
    return {"stream": found.stream, **found.place._asdict(), **why, **document}


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
    replaced: dict[Place, bytes] = {}
    if value is not None:
        try:
            replaced[place] = sys.stdin.buffer.read() if value == "-" else Path(value).read_bytes()
        except OSError as error:
            why = f"{value} cannot be read ({error.strerror})"
            raise InputError(f"{why}: name a file with the repaired value") from error
    return ResendRequest(place.topic, places=[place], values=replaced, again=again)


def _required_place(name: str) -> Place:
    """Return the place that a person named. Raises InputError where it is none."""
    place = parse_place(name)
    if place is None:
        raise InputError(
            f"{name!r} is no place: write TOPIC/PARTITION/OFFSET, or TOPIC:RUN:FILE:LINE, as `tokenmill dead-letters "
            "list` does"
        )
    return place


def _counts_table(reasons: Counter[str]) -> ShownTable:
    return ShownTable(("reason", "records"), [*reasons.most_common(), ("in all", reasons.total())])


def _letters_table(letters: Iterable[DeadLetter]) -> ShownTable:
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


@command("eras", "tokenmill eras raw-text.train", "tokenmill eras raw-text.train --json", bucket=True)
def eras_command(
    settings: Settings,
    stream: OneStream,
    *,
    last: Annotated[int, option("Show so many, the newest ones.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the eras of a stream: the sets of blocks that become trainable, and are shuffled, together."""
    eras = asyncio.run(_read(settings, stream))
    if as_json:
        show_json({"stream": stream, "eras": list(map(_described, eras[-last:]))})
        return
    show_table(_eras_table(eras[-last:]))
    if not eras:
        say(f"{stream} has no era yet: a mill closes one as soon as there are blocks, and era_max_seconds have passed")


@command("close", "tokenmill close raw-text.train")
def close_command(settings: Settings, stream: OneStream, *, dry: DryRun = False, yes: Yes = False) -> None:
    """Declare a stream complete: the blocks that are left become an era, and no era follows it.

    Runs over the stream end there. Nothing milled later is ever trained on; stop the producers first, and flush. This
    cannot be undone; more text wants a new stream (stream_suffix). On a terminal, this asks first.
    """
    if StoredPack.find(settings.store, stream) is not None:
        raise InputError(f"{stream} in {settings.store} was packed: {ending(settings.store, stream)} closes it")
    if dry or asks(yes=yes):
        before, left = asyncio.run(_eras_and_blocks_left(settings, stream))
        summary = f"{stream} has {count(len(before), 'era')}, and {count(left, 'block')} in none"
        if before and before[-1].end:
            summary = f"{stream} is closed already, after {count(len(before) - 1, 'era')}"
        if dry:
            say(f"{summary}; nothing was done")
            return
        if not (before and before[-1].end):
            agree(
                f"{summary}. Closing makes these the last era, and cannot be undone: what is milled into this stream "
                "later is never trained on"
            )
    eras = asyncio.run(_close(settings, stream))
    blocks = sum(era.blocks for era in eras)
    say(f"{stream} is closed after {count(len(eras) - 1, 'era')} with {count(blocks, 'block')}")


@command("skip", "tokenmill skip raw-text 0 1234", "tokenmill skip raw-text --schema-id 77")
def skip_command(
    settings: Settings,
    topic: RawTopic,
    partition: Annotated[int | None, argument("The record's partition.")] = None,
    offset: Annotated[int | None, argument("The record's offset.")] = None,
    *,
    schema_id: Annotated[int | None, option("Skip all records that name this schema, and are not milled yet.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put a record that hangs or kills workers on the skip list: it is dead-lettered without being tried.

    With --schema-id, all records that wait for a schema which the registry does not have: those of all partitions, or
    of one, that are there now. A running mill ends and starts again within seconds, and skips them from then on;
    `tokenmill inspect` shows the skip list. Refused once a stream has published past the record.
    """
    place = {"topic": topic, "partition": partition, "offset": offset}
    if schema_id is not None:
        if offset is not None:
            raise InputError("--schema-id skips all records of a schema: leave the offset out")
        counts = asyncio.run(failed_records.skip_schema(settings, topic, schema_id, partition))
        if as_json:
            show_json({**place, "schema_id": schema_id, "records": counts})
        for number, records in counts.items():
            say(f"the mill of {topic}[{number}] is asked to skip {count(records, 'record')} of schema {schema_id}")
        return
    if partition is None or offset is None:
        raise InputError("give the record's partition and offset, or --schema-id")
    streams, passed = asyncio.run(failed_records.skip(settings, topic, partition, offset))
    if as_json:
        show_json({**place, "streams": streams, "passed": passed})
        return
    for name in streams:
        show(name)
    if passed:
        say(f"not skipped in {', '.join(passed)}, which have passed the record already")
    say(f"the mill of {topic}[{partition}] is asked to skip offset {offset}: it starts again within seconds to do so")


@command("ignore", "tokenmill ignore tokens.raw-text.train 0 1234")
def ignore_command(
    settings: Settings,
    topic: Annotated[str, argument("The token topic.", "TOKEN_TOPIC")],
    partition: Annotated[int, argument("The message's partition.")],
    offset: Annotated[int, argument("The message's offset.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Let all readers of a token topic pass over a message that none of them accepts, because no mill wrote it.

    Mills and stores that halted there go on within seconds; `tokenmill inspect stream` shows the ignore list. A message
    that continues its chain is refused, and is never left out, whatever the list says.
    """
    stream, reason = asyncio.run(failed_records.ignore(settings, topic, partition, offset))
    if as_json:
        show_json({"topic": topic, "partition": partition, "offset": offset, "stream": stream, "reason": reason})
        return
    show(stream)
    say(f"readers of {topic}[{partition}] pass over offset {offset} from now on: {reason}")


async def _read(settings: Settings, stream: str) -> list[Era]:
    of_bucket = (settings.store / stream / SOURCE_FILE).exists()
    if of_bucket or StoredPack.find(settings.store, stream) is not None:
        reader = open_eras(settings.store, stream)
        return [reader.era(number) for number in range(reader.eras)]
    settled = await settled_stream(settings, stream)
    follower = EraFollower(stream, settled.genesis.recipe.fingerprint)
    async with consumer(settings) as client:
        return [era async for part in read_eras(client, settled.stream.control_topic, follower) for era, _ in part]


async def _eras_and_blocks_left(settings: Settings, stream: str) -> tuple[list[Era], int]:
    settled = await settled_stream(settings, stream)
    eras = await _read(settings, stream)
    extents = Extents(settled.stream.tokens_topic, settled.genesis.recipe, settled.control.ignored)
    log = EraLog(settled.genesis.recipe.fingerprint, eras[-1] if eras else None)
    async with consumer(settings) as client:
        await extents.look(client, log)
    return eras, sum(max(0, extent.blocks - log.end(number)[0]) for number, extent in extents.found.items())


async def _close(settings: Settings, stream: str) -> list[Era]:
    settled = await settled_stream(settings, stream)

    async def write(topic: str, key: bytes, value: bytes) -> None:
        await write_control(settings, topic, [(key, value)])

    closer = EraCloser(settled, write, era_blocks=1, era_seconds=0.0)
    async with consumer(settings) as client:
        await closer.close(client)
    return await _read(settings, stream)


def _described(era: Era) -> dict[str, Any]:
    ranges = [[part.first, part.stop] for part in era.ranges]
    blocks = {"era": era.number, "closed": era.closed, "blocks": era.blocks}
    return {**blocks, "end": era.end, "ranges": ranges, "hash": era.hash.hex()}


def _eras_table(eras: list[Era]) -> ShownTable:
    rows = []
    for era in eras:
        ranges = ", ".join(
            f"{n}: {part.first:,} to {part.stop - 1:,}" for n, part in enumerate(era.ranges) if part.blocks
        )
        closed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(era.closed / 1000))
        rows.append((era.number, closed, era.blocks, ranges or "the end"))
    return ShownTable(("era", "closed", "blocks", "partition: blocks"), rows, words=True)
