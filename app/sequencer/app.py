"""The sequencer: the Faust app that judges duplicates. ``faust -A tokenmill.app.sequencer.app worker`` runs it.

A worker keeps nothing that counts on disk. One judges; where several run, the others wait. A domain's signature log is
judged from its resume until it is revoked. What is judged goes out in this order, so that whoever begins again finds
all that decides what comes next:

1. Judge what a fetch brought, in the log's order, in a thread. Nothing has left the process yet.
2. Send the verdicts to the log of each raw partition, one at a time; logs do not wait for each other.
3. Write where slices of the window have begun: all verdicts before are out.
4. Note the position, for people and lag tools; and now and then on the disk, with the window, for the next start.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
from faust.types import TP

from tokenmill.documents import SourceRecord
from tokenmill.errors import DifferenceError, SourceError

from ..kafka.clients import Send, consumer
from ..kafka.fetched_batches import FetchedBatch, unpacked
from ..settings import Domain, Settings, load_settings
from ..telemetry.measuring import LagAge, PartitionProgress, StageClock, State, waiting_status
from ..worker.ending import end_process
from ..worker.run import StreamWorker
from ..worker.transport import BatchApp, faust_options
from .domain_messages import SLICE_KEY, JudgedRange, SliceStart, Source, VerdictEnd, domain_fingerprint
from .rebuilding import DomainOrder, Rebuilding, Rebuilt, SignatureLog, WindowFolder, WindowNote
from .verdict_log import VerdictLog, settle_domain

DOUBT_SECONDS: Final = 10.0
"""For as long at least, a log must be told to lack something: a broker that has just begun may tell ends too low."""
AGAIN_SECONDS: Final = 1.0
"""After as long it is looked again."""
TICK_SECONDS: Final = 1.0
"""How often it is looked whether verdict logs have lost anything."""

log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class VerdictWriter:
    """Sends verdicts on one raw partition; where it is not certain that they are in the log, the process ends."""

    settings: Settings
    log: VerdictLog
    """As far as its end."""
    send: Send
    leader: Callable[[], object]
    """Something that differs once the log may have another leader, or the same one after a new start."""
    _end: int = field(init=False)
    """The offset that the next message gets."""
    _verdict_end: VerdictEnd = field(init=False)
    """Of the raw partition after the last message of the log."""
    _leader: object = field(default=None, init=False)
    """Which had all that was acknowledged, the last time that it was looked."""

    def __post_init__(self) -> None:
        """Go on where the log ends."""
        self._end, self._verdict_end = self.log.end, self.log.verdict_end

    async def write(self, judged: Sequence[JudgedRange]) -> None:
        """Send verdicts, one after the other; durable when this returns."""
        for one in judged:
            topic, partition = self.log.tp
            offset = await self.send(topic, partition, one.pack(self.log.fingerprint, self._end), None, ())
            if offset != self._end:
                end_process(f"{self.log} took a message at offset {offset}, and not at {self._end}: it is read again")
            await self.check()  # of what was before: an equal message may be in its place
            self._end, self._verdict_end = offset + 1, one.after

    async def check(self) -> None:
        """End the process where the log may have another leader, and has lost what was acknowledged."""
        leader = self.leader()
        if leader == self._leader:
            return
        if self._end:
            async with consumer(self.settings) as client:
                if (lost := await self.log.lacks(client, self._end - 1, self._verdict_end)) is not None:
                    end_process(f"{self.log} {lost}: it lost its tail")
        self._leader = leader


class SignaturePartition:
    """Judges what a domain's mills have signed: `resume`, then `feed` again and again; `stop` ends it."""

    def __init__(self, tp: TP, settings: Settings, domain: Domain, app: BatchApp) -> None:
        self.tp = tp
        self.halted: str | None = None
        """Why nothing is judged any more, or None."""
        self.position = 0
        """The offset up to which messages have been judged, and their verdicts are durable."""
        self._settings, self._domain, self._app = settings, domain, app
        self._fingerprint, self._signatures = domain_fingerprint(domain), SignatureLog(domain)
        self._folder = WindowFolder(domain)
        self._noting: asyncio.Future[None] | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._halted_by = ""
        self._generation: int | None = None
        self._order: DomainOrder | None = None
        self._writers: dict[Source, VerdictWriter] = {}
        self._lock = asyncio.Lock()
        self._lag_age = LagAge()
        self._clock = StageClock()

    async def resume(self) -> None:
        """Learn what is known again, send what is not out, and let the log flow from there.

        What a new start does not get over halts; everything else is raised and ends the worker.
        """
        self._clock.enter("resume")
        await settle_domain(self._settings, self._domain)
        try:
            rebuilt = await self._rebuilt()
        except (DifferenceError, SourceError) as error:
            self.halted, self._halted_by = str(error), error.brief
            self._clock.enter("halted")
            log.critical("domain halted", domain=self._domain.name, reason=self.halted)
            return
        self._order = rebuilt.order
        for source, verdicts in rebuilt.logs.items():
            self._writers[source] = await self._writer(verdicts)
        await self._send(rebuilt.pending)
        self.position = rebuilt.position
        self._generation = await self._app.start_partition(self.tp, self.position)
        self._clock.wait()
        log.info("domain resumed", domain=self._domain.name, offset=self.position, kept=rebuilt.order.window.kept)

    async def _rebuilt(self) -> Rebuilt:
        """Learn what is known; what says that logs have lost something counts once it has been so for a while."""
        loop = asyncio.get_running_loop()
        doubted: float | None = None
        while True:
            try:
                return await Rebuilding(self._settings, self._domain, self._signatures, self._folder).run()
            except (DifferenceError, SourceError) as error:
                doubted = doubted or loop.time()
                if loop.time() >= doubted + DOUBT_SECONDS:
                    raise
                log.warning("looking again", domain=self._domain.name, reason=str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _writer(self, verdicts: VerdictLog) -> VerdictWriter:
        app = self._app
        await app.know(*verdicts.tp)
        leader = partial(app.leader, TP(*verdicts.tp))
        return VerdictWriter(settings=self._settings, log=verdicts, send=app.send_record, leader=leader)

    async def feed(self, batch: FetchedBatch) -> None:
        """Judge what a fetch brought; the verdicts are durable when this returns."""
        order = self._order
        if order is None or batch.generation != self._generation:
            return
        async with self._lock:
            self._clock.enter("other")
            records = await asyncio.to_thread(unpacked, batch.records, batch.position)
            self._lag_age.passed(records)
            judged = await asyncio.to_thread(self._judge, order, records)
            if batch.generation != self._generation:
                return
            self._clock.enter("publish")
            await self._send(judged)
            self.position = batch.position
            self._app.set_durable(self.tp, self.position)
            if self._folder.is_due(order.window) and (self._noting is None or self._noting.done()):
                known = SliceStart(0, self.position, order.window.kept, dict(order.verdict_ends))
                note = WindowNote(known, list(self._signatures.digests))  # judging goes on while it is written
                self._noting = asyncio.ensure_future(asyncio.to_thread(self._folder.write, order.window, note))
            self._clock.wait()

    def _judge(self, order: DomainOrder, records: Sequence[SourceRecord]) -> Mapping[Source, Sequence[JudgedRange]]:
        """Take step 1."""
        judged: dict[Source, list[JudgedRange]] = defaultdict(list)
        for record in records:
            signed = self._signatures.signed(record)
            part = order.accept(signed) if signed is not None else None
            if part is not None:
                judged[part.source].append(order.judge(part, record.offset))
            elif signed is not None and signed.begin > order.verdict_ends.get(signed.source, VerdictEnd()).next_offset:
                log.warning("passed over: ranges before it are missing", topic=self.tp.topic, offset=record.offset)
        return judged

    async def _send(self, judged: Mapping[Source, Sequence[JudgedRange]]) -> None:
        """Take steps 2 and 3."""
        for source in judged.keys() - self._writers.keys():
            self._writers[source] = await self._writer(VerdictLog(self._domain, source))
        await asyncio.gather(*(self._writers[source].write(ranges) for source, ranges in judged.items()))
        order, topic = self._order, self._domain.slices_topic
        while order is not None and order.started:
            await self._app.send_record(topic, 0, order.started[0].pack(self._fingerprint), SLICE_KEY, ())
            del order.started[0]

    async def tick(self) -> None:
        """See that no verdict log has lost what was acknowledged, also while nothing is sent."""
        if self._generation is not None and not self._lock.locked():
            async with self._lock:
                for writer in self._writers.values():
                    await writer.check()

    def may_go_on(self) -> bool:
        """Return False: what halts a domain stays."""
        return False

    def stop(self) -> None:
        """Send nothing more; the folder is free once nothing is written to it any more."""
        self._generation = None
        self._clock.stop()
        self._leaving = asyncio.ensure_future(self._leave())

    async def _leave(self) -> None:
        async with self._lock:
            if self._noting is not None:
                await self._noting
            self._folder.close()

    def progress(self) -> PartitionProgress:
        """Return how far the log is judged."""
        state: State = "halted" if self.halted else "resuming" if self._generation is None else "running"
        position = None if self._generation is None else self.position
        return PartitionProgress(state=state, position=position, lag_age=self._lag_age, clock=self._clock)

    def status(self) -> Mapping[str, Any]:
        """Return how far the log is judged, for the supervisor and for people."""
        return {
            "position": self.progress().position,
            "halted": self.halted,
            "halted_by": self._halted_by if self.halted else None,
            **waiting_status(None, self._clock),
            "kept": self._order.window.kept if self._order is not None else None,
        }


class Sequencer(StreamWorker[SignaturePartition]):
    """What the sequencer app does with signature logs, one a domain."""

    def __init__(self, settings: Settings, app: BatchApp) -> None:
        self._domains = {domain.signatures_topic: domain for domain in settings.domains()}
        super().__init__("sequencer", settings, app, list(self._domains))

    async def _prepare(self) -> None:
        """Do nothing: each domain is settled when its log resumes."""

    def _open(self, tp: TP) -> SignaturePartition:
        return SignaturePartition(tp, self._settings, self._domains[tp.topic], self._app)


def create_app(settings: Settings) -> BatchApp:
    """Return the sequencer as a Faust app. Raises SettingsError where no topic has ``dedup``."""
    topics = [domain.signatures_topic for domain in settings.require_domains()]
    app = BatchApp(f"{settings.group}-sequencer", **faust_options(settings))
    sequencer = Sequencer(settings, app)
    signatures = app.topic(*topics, value_type=bytes)
    app.agent(signatures, name="judge", isolated_partitions=True)(sequencer.partitions.feed_all)

    @app.timer(interval=TICK_SECONDS)  # type: ignore[untyped-decorator]
    async def tick() -> None:
        for partition in list(sequencer.partitions.owned.values()):
            await partition.tick()

    return app


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
