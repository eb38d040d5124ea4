"""Eras while everything breaks: one chain, every block in one era, and every store and reader has the same."""

import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.conftest import TopicFactory, topics_on
from tests.eras.judging import stops_of
from tests.faults.failpoints import CLOSING, SIDES, VARIABLE, Failpoint
from tests.faults.feeding import Feeder, flush_all
from tests.faults.oracle import (
    assert_eras_right,
    eras_are_complete,
    eras_of,
    expected_chains,
    forget_topics,
    judge,
    new_reader,
    read_control,
    read_topic,
    store_is_complete,
    stored_eras,
    token_messages,
)
from tests.faults.test_lost_logs import forged, halted
from tests.faults.test_lost_tails import cut
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, in_own_loop, make_anew, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, Stream
from tokenmill.errors import DamagedError
from tokenmill.samples.sequence import SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import open_eras, read_stream
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE, PartitionLock, partition_directory, stream_directory
from tokenmill.wire.message import HEADER_NAME, encode_header

SOON = 0.25
"""Seconds after which an era is closed: many of them in a short test."""


class Watcher:
    """Reads the eras on the control topics again and again, beside a test: they are added to, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        """Have seen nothing."""
        self.looks = 0
        self._settings = settings
        self._seen: dict[str, list[bytes]] = {}
        self._client = new_reader(settings.bootstrap_servers)
        self._enough = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        """Look once."""
        for stream in self._settings.streams():
            before, now = self._seen.get(stream.name, []), eras_of(self._settings, stream, self._client)
            assert now[: len(before)] == before, f"{stream.name}: eras changed"
            self._seen[stream.name] = now
        self.looks += 1

    def _run(self) -> None:
        try:
            while not self._enough.wait(0.3):
                self.look()
        except BaseException as error:
            self._error = error
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()
        if error is None:
            assert self._error is None, f"the reader of eras failed: {self._error!r}"
            self.look()
        self._client.close()


def era_settings(broker: Broker, raw_topic: str, directory: Path) -> Settings:
    """Return settings with which eras are closed all the time."""
    return service_settings(
        broker, raw_topic, directory, splits={"train": 1000}, session_timeout=1.5, era_max_seconds=SOON
    )


def start_segment(service: Service, settings: Settings) -> Worker:
    """Start a segment worker with other settings than the service's."""
    own, service.settings = service.settings, settings
    worker = service.segment()
    service.settings = own
    return worker


def start_mill(service: Service, settings: Settings, point: Failpoint | None = None) -> Worker:
    """Start a mill, which dies or stands at a failpoint if it gets one."""
    own, entry = service.settings, service.entry
    service.settings, service.entry = settings, "tests.faults.failpoints" if point else entry
    (mill,) = service.mill(environment={VARIABLE: str(point)} if point else None)
    service.settings, service.entry = own, entry
    return mill


def is_stopped(worker: Worker) -> bool:
    """Return whether a process stands still (`proc(5)`)."""
    return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def ignored(settings: Settings) -> int:
    """Return how many era records on the control topics are no eras."""
    return sum(
        sum(record.key == b"era" for record in read_topic(settings, stream.control_topic, 0))
        - len(eras_of(settings, stream))
        for stream in settings.streams()
    )


def has_eras(settings: Settings, more_than: int) -> Callable[[], bool]:
    """Return whether there are more eras than so many, as a condition to wait for."""
    return lambda: sum(len(eras_of(settings, stream)) for stream in settings.streams()) > more_than


def judge_both(service: Service, other: Settings, trial: Trial) -> None:
    """Judge; then the second store must come to have the same eras, byte for byte."""
    _, chains = judge(service, trial)
    service.wait_until(lambda: store_is_complete(other, chains) and eras_are_complete(other, chains))
    for stream in other.streams():
        assert stored_eras(other, stream) == stored_eras(service.settings, stream)


def have(settings: Settings, count: int) -> bool:
    """Return whether each stream has so many eras, and the store all of them."""
    found = {stream: eras_of(settings, stream) for stream in settings.streams()}
    return all(len(eras) >= count and stored_eras(settings, stream) == eras for stream, eras in found.items())


TEXT = b"a text of some length, so that a few of them fill a block; " * 4


@pytest.mark.fault("era-step-killed")
@pytest.mark.needs("minutes")
def test_mill_killed_at_any_step_of_closing_leaves_one_chain(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Mills of one group die before and after reading, measuring and writing; two stores and a reader agree."""
    settings = era_settings(broker, topic(2), tmp_path)
    other = settings.model_copy(update={"store": tmp_path / "other"})
    points = [
        Failpoint(step, side, trial.rng.choice((1, 2, 3)))
        for _ in range(trial.rounds(1, 4))
        for step in CLOSING
        for side in SIDES
    ]
    trial.rng.shuffle(points)
    writing = Failpoint("era", trial.rng.choice(SIDES), 1)
    with Service(settings, tmp_path) as service:
        start_segment(service, settings)
        start_segment(service, other)
        with Feeder(settings, trial.rng, burst=1):
            for point in [writing, *points[: trial.rounds(2, len(points))]]:
                mill = start_mill(service, settings, point)
                service.wait_until(lambda: not mill.running)  # noqa: B023 - called before the next round
                assert mill.process.returncode == -signal.SIGKILL, f"{point}: {mill.log}"
                service.workers.remove(mill)
                trial.fired(f"mill SIGKILL {point.side} {point.step}")
            with Watcher(settings) as watcher:
                start_mill(service, settings)
                service.wait_until(has_eras(settings, 1))
        judge_both(service, other, trial)
    trial.held(looks_at_eras=watcher.looks)


@pytest.mark.fault("eras-contested", "mill-stopped")
@pytest.mark.needs("minutes")
def test_stopped_mill_comes_back_with_an_era_that_nobody_takes(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """It stands in the middle of closing until another has closed eras, and goes on with what it had in mind."""
    settings = era_settings(broker, topic(2), tmp_path)
    other = settings.model_copy(update={"store": tmp_path / "other"})
    points = [Failpoint("era", "before", 2, "STOP")]
    if trial.full:
        points += [Failpoint(step, side, 3, "STOP") for step in CLOSING for side in SIDES]
    with Service(settings, tmp_path) as service:
        start_segment(service, settings)
        start_segment(service, other)
        with Feeder(settings, trial.rng, burst=1), Watcher(settings) as watcher:
            for point in points:
                zombie = start_mill(service, settings, point)
                service.wait_until(lambda: is_stopped(zombie))  # noqa: B023 - called before the next round
                heir = start_mill(service, settings)
                before, known = ignored(settings), len(eras_of(settings, settings.streams()[0]))
                service.wait_until(has_eras(settings, known + 1))
                zombie.resume()
                if point.step == "era" and point.side == "before":
                    service.wait_until(lambda: ignored(settings) > before)  # noqa: B023
                    trial.fired("era of a stopped mill that came too late")
                trial.fired(f"mill SIGSTOP {point.side} {point.step}")
                for mill in (zombie, heir):
                    mill.kill()
                    service.workers.remove(mill)
            start_mill(service, settings)
        judge_both(service, other, trial)
    trial.held(looks_at_eras=watcher.looks)


@pytest.mark.needs("minutes")
@pytest.mark.fault("eras-contested", "stream-shared")
def test_two_mills_that_both_own_partition_0_close_one_chain(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Two groups mill one stream and close its eras; each dies between its writing and its reading back."""
    settings = era_settings(broker, topic(2), tmp_path)
    second = settings.model_copy(update={"group": f"{settings.group}-by-mistake"})
    other = settings.model_copy(update={"store": tmp_path / "other"})
    with Service(settings, tmp_path) as service:
        start_segment(service, settings)
        start_segment(service, other)
        with Feeder(settings, trial.rng, burst=2), Watcher(settings) as watcher:
            start_mill(service, settings)
            for number in range(trial.rounds(1, 10)):
                rival = start_mill(service, second, Failpoint("era", "after", trial.rng.randint(2, 5)))
                service.wait_until(lambda: not rival.running)  # noqa: B023 - called before the next round
                assert rival.process.returncode == -signal.SIGKILL, rival.log
                service.workers.remove(rival)
                trial.fired("second owner SIGKILL after its era")
                if number % 2:
                    mine = service.workers[-1]
                    mine.kill()
                    service.workers.remove(mine)
                    start_mill(service, settings)
            start_mill(service, second)
            began = len(eras_of(settings, settings.streams()[0]))
            service.wait_until(has_eras(settings, began + 4))
        judge_both(service, other, trial)
    trial.fired("eras of two owners at once, of which one was ignored", ignored(settings))
    trial.held(looks_at_eras=watcher.looks)


@pytest.mark.needs("minutes")
@pytest.mark.fault("eras-owner-halted", "logs-rewritten")
def test_owner_whose_own_chain_stands_closes_eras_for_the_others(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Partition 0 contradicts itself: its mill halts, and no era takes more of it; partition 1 goes on."""
    settings = era_settings(broker, topic(2), tmp_path)
    (stream,) = settings.streams()
    send(settings, [Raw(TEXT, number % 2) for number in range(40)])
    with Service(settings, tmp_path) as service:
        service.segment()
        (mill,) = service.mill()
        chains = service.wait_until_complete()
        service.wait_until(lambda: sum(stops_of(eras_of(settings, stream))) == sum(map(len, chains.values())))
        before = stops_of(eras_of(settings, stream))
        mill.stop()
        wrong = forged(token_messages(settings, expected_chains(settings)[0])[-1])
        send(settings, [Raw(bytes(wrong.tokens), 0, b"", [(HEADER_NAME, encode_header(wrong))])], stream.tokens_topic)
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{settings.raw_topics[0]}/0")))
        send(settings, [Raw(TEXT, number % 2) for number in range(40)])
        flush_all(settings)
        wanted = len(expected_chains(settings)[1].blocks)
        service.wait_until(lambda: stops_of(eras_of(settings, stream)) == [before[0], wanted])
        service.wait_until(lambda: stored_eras(settings, stream) == eras_of(settings, stream))
        assert wanted > before[1]
        assert "no era takes blocks of this partition" in mill.log
    trial.fired("partition that contradicts itself")
    trial.held("eras", "loud")


def assert_lost_eras_are_noticed(
    settings: Settings, directory: Path, lose: Callable[[Stream, list[bytes]], None], trial: Trial
) -> None:
    """Fill a store, lose eras, go on: the store keeps its eras and says so, a new one follows what stands there."""
    (stream,) = settings.streams()
    with Service(settings, directory) as service:
        service.segment()
        service.mill()
        for number in (1, 2):
            send(settings, [Raw(TEXT)] * 20)
            service.wait_until_complete()
            service.wait_until(lambda: have(settings, number))  # noqa: B023 - called before the next round
        service.stop()
    had = stored_eras(settings, stream)
    lose(stream, had)
    send(settings, [Raw(TEXT)] * 20)
    new = settings.model_copy(update={"store": directory / "new"})
    with Service(settings, directory) as service:
        worker = service.segment()
        start_segment(service, new)
        service.mill()
        service.wait_until(lambda: read_control(settings, stream).genesis is not None)
        flush_all(settings)
        chains = expected_chains(settings)
        service.wait_until(lambda: store_is_complete(settings, chains) and store_is_complete(new, chains))
        service.wait_until(lambda: eras_are_complete(new, chains))
        service.wait_until(lambda: "no more eras are stored" in worker.log)
        assert "is not on its control topic any more" in worker.log
        assert stored_eras(settings, stream) == had
        assert assert_eras_right(new, chains)
    trial.held("eras", "loud", "complete")


@pytest.mark.needs("minutes")
@pytest.mark.fault("eras-lost")
def test_store_halts_where_its_eras_topic_was_made_anew(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Who has eras that no topic tells of keeps them; blocks go on, and who has none follows the new ones."""
    settings = era_settings(broker, topic(), tmp_path)

    def lose(stream: Stream, _: list[bytes]) -> None:
        in_own_loop(partial(make_anew, settings, stream.control_topic))
        forget_topics()
        trial.fired("control topic made anew")

    assert_lost_eras_are_noticed(settings, tmp_path, lose, trial)


@pytest.mark.fault("eras-lost", "logs-rewritten")
@pytest.mark.needs("minutes")
def test_store_halts_where_the_control_topic_lost_an_era_that_it_has(tmp_path: Path, trial: Trial) -> None:
    """A broker comes back without the last era that it acknowledged, and another one takes its place."""
    with Broker(tmp_path / "broker") as broker:
        settings = era_settings(broker, topics_on(broker, "eras")(), tmp_path)

        def lose(stream: Stream, had: list[bytes]) -> None:
            broker.kill()
            trial.fired("era lost after its acknowledgement", cut(broker, stream.control_topic, -1))
            broker.start()
            assert eras_of(settings, stream) == had[:-1]

        assert_lost_eras_are_noticed(settings, tmp_path, lose, trial)


def trainable(settings: Settings) -> list[bool]:
    """Return of each era in the store whether its blocks are there."""
    (stream,) = settings.streams()
    info = read_stream(settings.store, stream.name)
    sequence = SequenceId(
        stream=stream.name,
        fingerprint=info.fingerprint.hex(),
        sequence_length=info.block_tokens - 1,
        seed=0,
        shuffle=False,
        eras=(0, None),
        passes=1,
    )
    samples = TrainableSamples(settings.store, info, sequence, 1, check=False, on_damage="refuse")
    samples.eras.refresh()
    return [samples.is_trainable(samples.eras.era(number)) for number in range(samples.eras.eras)]


@pytest.mark.fault("eras-behind", "era-files-broken")
@pytest.mark.needs("minutes")
def test_eras_before_their_blocks_wait_and_damaged_ones_are_written_anew(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """A directory that is held keeps blocks, or eras, away; a damaged file of eras is named, and made again."""
    settings = era_settings(broker, topic(2), tmp_path)
    (stream,) = settings.streams()
    directory = stream_directory(settings.store, stream.name)
    with Service(settings, tmp_path) as service:
        service.mill()
        segment = service.segment()
        service.wait_until(partition_directory(settings.store, stream.name, 1).exists)
        segment.kill()
        service.workers.remove(segment)
        with PartitionLock(partition_directory(settings.store, stream.name, 1)):
            segment = service.segment()
            send(settings, [Raw(TEXT, number % 2) for number in range(40)])
            flush_all(settings)
            service.wait_until(lambda: stops_of(stored_eras(settings, stream))[1:] > [0])
            service.wait_until(lambda: bool(trainable(settings)))  # a line counts when its row is there, a sync later
            assert not all(trainable(settings))
            trial.fired("era in the store before its blocks")
        service.wait_until(lambda: all(trainable(settings)))
        judge(service, trial)
        kept = len(stored_eras(settings, stream))
        segment.kill()
        service.workers.remove(segment)
        with PartitionLock(directory):
            segment = service.segment()
            send(settings, [Raw(TEXT, number % 2) for number in range(40)])
            flush_all(settings)
            service.wait_until(lambda: store_is_complete(settings, expected_chains(settings)))
            service.wait_until(lambda: "waiting for the eras' files" in segment.log)
            assert len(stored_eras(settings, stream)) == kept
            trial.fired("blocks in the store before their eras")
        judge(service, trial)
        for name in (ERA_LINES_FILE, ERA_INDEX_FILE):
            segment.kill()
            service.workers.remove(segment)
            right = {path: (directory / path).read_bytes() for path in (ERA_LINES_FILE, ERA_INDEX_FILE)}
            damage(directory / name, trial)
            segment = service.segment()
            service.wait_until(lambda: is_refused(segment, name) or is_whole(settings, stream))  # noqa: B023 - so far
            if not is_refused(segment, name):  # the row was of the last commit, which may have been cut off
                trial.fired(f"{name} healed by itself")
                continue
            segment.kill()
            service.workers.remove(segment)
            for path in right:
                (directory / path).unlink()
            segment = service.segment()
            service.wait_until(lambda: stored_eras(settings, stream) == eras_of(settings, stream))
            assert (directory / ERA_LINES_FILE).read_bytes() == right[ERA_LINES_FILE]
        judge(service, trial)
        assert is_whole(settings, stream)
    trial.held("loud")


def is_refused(worker: Worker, name: str) -> bool:
    """Return whether a segment worker has given up the eras over a file."""
    return "no more eras are stored" in worker.log and name in worker.log


def is_whole(settings: Settings, stream: Stream) -> bool:
    """Return whether the store has every era of the topic, and its files can be read."""
    try:
        reader = open_eras(settings.store, stream.name)
        return [reader.era(number).pack() for number in range(reader.eras)] == eras_of(settings, stream)
    except DamagedError:
        return False


def damage(path: Path, trial: Trial) -> None:
    """Flip a bit of the first era, or of its row; all others stand behind it."""
    data = bytearray(path.read_bytes())
    data[trial.rng.randrange(40)] ^= 1 << trial.rng.randrange(8)
    path.write_bytes(data)
    trial.fired(f"bit flipped in {path.name}")
