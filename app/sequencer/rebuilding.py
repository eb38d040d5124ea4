"""How a sequencer learns again what it must know: from a note on its disk, or a window back in the signature log.

What is on its disk, the window of a domain and a note of its place in the logs, is a cache: without it, or where it
does not belong to the logs, a window of signatures is read again. Ranges are judged as the signature log has them,
`DomainOrder`: docs/reliability.md has the rules, and tests/simulation/test_verdicts.py their model.
"""

import asyncio
import fcntl
import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import structlog
import xxhash
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, DiskError, SourceError
from tokenmill.store.layout import blaming, put_file

from ..kafka.clients import consumer, offsets, read_partition, read_range
from ..kafka.cluster import partitions_of
from ..milling.duplicates.signatures import SLICES, Deduplication
from ..milling.duplicates.window import Window, slice_size
from ..settings import Domain, Settings
from .domain_messages import (
    SLICE_KEY,
    TWO_HISTORIES,
    JudgedRange,
    SignedRange,
    SliceStart,
    Source,
    VerdictEnd,
    deduplication_in,
    domain_fingerprint,
)
from .verdict_log import VerdictLog

NOTES: Final = 64
"""Notes while a window fills once: what came after one, 156,000 documents by default, is judged again in a second."""
NOTE: Final = "note.json"
NOTED: Final = 256
"""Messages by which a note knows its log, where so many were read: more than a broker loses of what it acknowledged."""
BEGINNING: Final = SliceStart()
"""Of every domain: nothing is known."""

log = structlog.get_logger(__name__)


def first_slice(one: SliceStart, deduplication: Deduplication) -> int:
    """Return the first slice of the window at the beginning of the message that has a slice's first document.

    That is in the slice before, mostly; where a message has more documents than a slice, further back.
    """
    return max(0, one.kept // slice_size(deduplication) - SLICES + 1)


def base_of(slices: Iterable[SliceStart], whole: SliceStart, deduplication: Deduplication) -> SliceStart:
    """Return where to begin so that the window is whole where the slice ``whole`` begins."""
    return next((one for one in slices if one.number == first_slice(whole, deduplication)), BEGINNING)


class DomainOrder:
    """What is known of a domain at a place of its signature log; `accept` each message, then `judge` or `take` it."""

    def __init__(
        self, deduplication: Deduplication, base: SliceStart, whole: int | None = 0, directory: Path | None = None
    ) -> None:
        """Begin at a slice, or at a note.

        Args:
            deduplication: What a duplicate is.
            base: What is known there.
            whole: The offset from which on the window is whole; None: ``directory`` has it.
            directory: Where the window's files go; None: they have no names.

        Raises:
            DamagedError: the folder lacks some of the window.
            DiskError: there is no room for the window.
            SettingsError: numba is not installed.

        """
        self.verdict_ends: dict[Source, VerdictEnd] = dict(base.verdict_ends)
        """How far each raw partition is judged."""
        self.started: list[SliceStart] = []
        """Slices that have begun since this was last emptied."""
        self.window = Window(deduplication, directory, base.kept, goes_on=whole is None)
        self._whole = base.signature if whole is None else whole

    def accept(self, signed: SignedRange) -> SignedRange | None:
        """Return the part of the next signed range that counts; None where it is known, or is behind a hole."""
        known = self.verdict_ends.get(signed.source, VerdictEnd()).next_offset
        return signed.since(known) if signed.begin <= known < signed.end else None

    def judge(self, part: SignedRange, signature: int) -> JudgedRange:
        """Return the verdicts on an accepted part of the message at ``signature``. Raises DiskError: no room left."""
        kept, verdict_end = self.window.kept, self.verdict_ends.get(part.source, VerdictEnd())
        found = self.window.judge(part.hashes, part.places)
        told = np.flatnonzero(found.kinds)
        judged = JudgedRange(
            *(part.begin, part.end, part.remembered, signature),
            *(part.offsets[told], found.kinds[told], found.places[told], verdict_end.chain),
        )
        self._passed(part.source, judged, kept)
        return judged

    def take(self, part: SignedRange, signature: int, out: JudgedRange) -> None:
        """Do as `judge`, where the verdicts are ``out`` already: these are the ones. Raises DifferenceError.

        Where the window is not whole, it cannot be said whether they are right: what was kept may depend on documents
        that had left it since.
        """
        verdict_end = self.verdict_ends.get(part.source, VerdictEnd())
        if (out.begin, out.end, out.before) != (part.begin, part.end, verdict_end.chain):
            raise DifferenceError(TWO_HISTORIES)
        if signature >= self._whole:
            if self.judge(part, signature).after != out.after:
                raise DifferenceError(TWO_HISTORIES)
            return
        kept, stays = self.window.kept, ~np.isin(part.offsets, out.offsets)
        self.window.keep(np.ascontiguousarray(part.hashes[stays]), part.places[stays])
        self._passed(part.source, out, kept)

    def _passed(self, source: Source, judged: JudgedRange, kept: int) -> None:
        """Go behind a range; the slices that begin in it are known by what was known before it."""
        size = slice_size(self.window.deduplication)
        numbers = range(max(1, -(-kept // size)), -(-self.window.kept // size))
        verdict_ends = dict(self.verdict_ends) if numbers else {}
        self.started += [SliceStart(number, judged.signature, kept, verdict_ends) for number in numbers]
        self.verdict_ends[source] = judged.after


class WindowNote(NamedTuple):
    """A place in the logs of a domain, all verdicts before which are out."""

    known: SliceStart
    digests: Sequence[int]
    """Of the newest signature messages before it (`SignatureLog.digests`)."""


class WindowFolder:
    """A domain's folder among the temporary files of this user, which one process at a time uses."""

    def __init__(self, domain: Domain) -> None:
        """Take the folder; `path` is None where another process has it, or it cannot be used."""
        self._fingerprint = domain_fingerprint(domain)
        self._noted = 0
        self._lock = -1
        self.path: Path | None = None
        path = Path(gettempdir()) / f"tokenmill-window-{os.getuid()}-{self._fingerprint.hex()}"
        try:
            path.mkdir(0o700, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(self._lock).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = path
        except OSError as error:
            self.close()
            log.warning("the window is not kept for a new start", folder=str(path), reason=str(error))

    def close(self) -> None:
        """Leave the folder to another process."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock, self.path = -1, None

    def read(self) -> WindowNote | None:
        """Return the newest note; None where there is none."""
        if self.path is None:
            return None
        try:
            told: dict[str, Any] = orjson.loads((self.path / NOTE).read_bytes())
            return WindowNote(SliceStart.unpack(orjson.dumps(told["known"]), self._fingerprint), told["digests"])
        except (OSError, ValueError, KeyError, TypeError, DamagedError):
            return None

    def clear(self) -> None:
        """Remove the note, and then what the window had."""
        if self.path is not None:
            for path in (self.path / NOTE, *self.path.glob("seen-*.bin")):
                path.unlink(missing_ok=True)

    def is_due(self, window: Window) -> bool:
        """Whether so much was kept since the last note that the next one is worth its time."""
        return self.path is not None and window.kept - self._noted >= max(1, window.deduplication.window // NOTES)

    def write(self, window: Window, note: WindowNote) -> None:
        """Make durable what the window has, then the note; another thread may go on to judge meanwhile.

        Where the disk refuses, the log says so, and the note before stays.
        """
        if self.path is None:
            return
        try:
            with blaming(self.path):
                window.sync()
                known = orjson.Fragment(note.known.pack(self._fingerprint))
                put_file(self.path / NOTE, orjson.dumps({"known": known, "digests": note.digests}))
                window.forget(note.known.kept)
        except DiskError as error:
            log.warning("the window is not kept for a new start", reason=str(error))
        self._noted = note.known.kept


@dataclass(slots=True)
class Rebuilt:
    """What a sequencer knows where it begins to send."""

    order: DomainOrder
    position: int
    """The offset on the signature log of the next message to judge."""
    logs: Mapping[Source, VerdictLog]
    """All of which was read."""
    pending: Mapping[Source, Sequence[JudgedRange]]
    """Verdicts that are not out."""


class SignatureLog:
    """What the mills of a domain have signed."""

    def __init__(self, domain: Domain) -> None:
        self.tp = TopicPartition(domain.signatures_topic, 0)
        self.digests: deque[int] = deque(maxlen=NOTED)
        """Of the messages that were read last, in their order."""
        self._known = domain_fingerprint(domain), deduplication_in(domain).width, len(domain.raw_topics)

    def signed(self, record: SourceRecord) -> SignedRange | None:
        """Return what a mill has signed; None for a record that is no message of this domain, which the log names."""
        self.digests.append(_digest(record))
        try:
            return SignedRange.unpack(record.value, *self._known)
        except DamagedError as error:
            log.warning("passed over", topic=self.tp.topic, offset=record.offset, why=str(error))
            return None

    async def has(self, client: AIOKafkaConsumer, note: WindowNote) -> bool:
        """Whether the log still has the messages before a note, as they were read."""
        end, (first, last) = note.known.signature, (await offsets(client, [self.tp]))[self.tp]
        begin = end - len(note.digests)
        if not first <= begin < end <= last:
            return False
        return [_digest(record) async for record in read_range(client, self.tp, begin, end)] == note.digests

    async def accepted(
        self, client: AIOKafkaConsumer, order: DomainOrder, start: int, end: int
    ) -> AsyncIterator[tuple[int, SignedRange]]:
        """Yield what counts of the messages ``[start, end)``, each with its offset; judge it before the next."""
        async for record in read_range(client, self.tp, start, end):
            signed = self.signed(record)
            if signed is not None and (part := order.accept(signed)) is not None:
                yield record.offset, part


def _digest(record: SourceRecord) -> int:
    return xxhash.xxh3_64_intdigest(record.value or b"")


async def verdict_logs(client: AIOKafkaConsumer, domain: Domain) -> dict[Source, VerdictLog]:
    """Return the logs of verdicts on all raw partitions of a domain, not open yet."""
    return {
        (number, partition): VerdictLog(domain, (number, partition))
        for number, raw_topic in enumerate(domain.raw_topics)
        for partition in range(await partitions_of(client, domain.verdicts_topic(raw_topic)))
    }


async def recorded_slices(client: AIOKafkaConsumer, domain: Domain) -> dict[int, SliceStart]:
    """Return where slices of the window begin, by their numbers, and the beginning."""
    slices, fingerprint = {0: BEGINNING}, domain_fingerprint(domain)
    async for record in read_partition(client, TopicPartition(domain.slices_topic, 0)):
        if record.key == SLICE_KEY:
            with suppress(DamagedError):
                one = SliceStart.unpack(record.value, fingerprint)
                slices[one.number] = one
    return slices


async def are_out(client: AIOKafkaConsumer, logs: Mapping[Source, VerdictLog], one: SliceStart) -> bool:
    """Go in all logs behind what is known at a slice's start; return whether all of it is out."""
    for source, verdicts in logs.items():
        if not await verdicts.open(client, one.verdict_ends.get(source, VerdictEnd())):
            return False
    return one.verdict_ends.keys() <= logs.keys()


class Rebuilding:
    """Learns what is known of a domain; `run` once."""

    def __init__(self, settings: Settings, domain: Domain, signatures: SignatureLog, folder: WindowFolder) -> None:
        self._settings, self._domain, self._deduplication = settings, domain, deduplication_in(domain)
        self._signatures, self._folder = signatures, folder
        self._logs: dict[Source, VerdictLog] = {}

    async def run(self) -> Rebuilt:
        """Read what is out and what was signed, and return what is known behind all that is out.

        Raises:
            DifferenceError: the signature log lost messages of which verdicts are out, or these hold two histories.
            SourceError: the signature log or a verdict log no longer has the window.
            BrokerError: no broker answers.

        """
        async with consumer(self._settings) as signatures, consumer(self._settings) as verdicts:
            self._logs = await verdict_logs(verdicts, self._domain)
            self._signatures.digests.clear()
            noted = await self._noted(signatures, verdicts)
            base, order = noted if noted is not None else await self._from_slices(verdicts)
            return await self._level(order, base, signatures, verdicts)

    async def _noted(
        self, signatures: AIOKafkaConsumer, verdicts: AIOKafkaConsumer
    ) -> tuple[SliceStart, DomainOrder] | None:
        """Return what the disk has and where that is known, with all logs behind it; None where it has nothing."""
        note = self._folder.read()
        if note is None or not await self._signatures.has(signatures, note):
            return None
        if not await are_out(verdicts, self._logs, note.known):
            return None
        try:
            order = await asyncio.to_thread(DomainOrder, self._deduplication, note.known, None, self._folder.path)
        except DamagedError as error:
            log.warning("the window is learned again", domain=self._domain.name, reason=str(error))
            return None
        self._signatures.digests.extend(note.digests)
        log.info("the window is on the disk", domain=self._domain.name, offset=note.known.signature)
        return note.known, order

    async def _from_slices(self, client: AIOKafkaConsumer) -> tuple[SliceStart, DomainOrder]:
        """Return where to begin, with all logs behind what is known there, and a window that is empty yet."""
        slices = await recorded_slices(client, self._domain)
        for number in sorted(slices, reverse=True):
            if await are_out(client, self._logs, slices[number]):
                break
        base = base_of(slices.values(), slices[number], self._deduplication)
        if not await are_out(client, self._logs, base):
            raise SourceError(
                f"a verdict log of domain {self._domain.name} no longer has the window: its topics must keep as many "
                "records; begin a new domain with a new stream_suffix"
            )
        self._folder.clear()
        return base, DomainOrder(self._deduplication, base, slices[number].signature, self._folder.path)

    async def _level(
        self, order: DomainOrder, base: SliceStart, signatures: AIOKafkaConsumer, verdicts: AIOKafkaConsumer
    ) -> Rebuilt:
        """Judge again until all that is out has been."""
        tp = self._signatures.tp
        first, end = (await offsets(signatures, [tp]))[tp]
        if first > base.signature:
            raise SourceError(
                f"{tp.topic} begins at offset {first}, and the window at {base.signature}: its retention must hold the "
                "window; begin a new domain with a new stream_suffix"
            )
        out = {source: await one.next(verdicts) for source, one in self._logs.items()}
        pending: dict[Source, list[JudgedRange]] = defaultdict(list)
        position = base.signature
        if any(out.values()):
            async for offset, part in self._signatures.accepted(signatures, order, position, end):
                if (known := out.get(part.source)) is None:
                    pending[part.source].append(order.judge(part, offset))
                else:
                    order.take(part, offset, known)
                    out[part.source] = await self._logs[part.source].next(verdicts)
                position = offset + 1
                if not any(out.values()):
                    break
        if any(out.values()):
            raise DifferenceError(f"{tp.topic} lost messages of which verdicts are out: {TWO_HISTORIES}")
        return Rebuilt(order, position, self._logs, pending)
