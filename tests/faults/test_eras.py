"""Eras while everything breaks: one chain, every block in one era, and every store and reader has the same."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.conftest import topics_on
from tests.eras.judging import stops_of
from tests.faults import oracle
from tests.faults.altering import cut
from tests.faults.conftest import Configured
from tests.faults.failpoints import CLOSING, SIDES, Failpoint
from tests.faults.feeding import TEXT, Feeder, beside, flush_all
from tests.faults.serving import halted, working
from tests.faults.test_lost_logs import forged, raw_of
from tests.faults.test_step_kills import Breakable
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, in_own_loop, make_anew, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, Stream
from tokenmill.errors import DamagedError
from tokenmill.samples.sequence import SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import open_eras, read_stream
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE, PartitionLock, partition_directory, stream_directory

pytestmark = pytest.mark.needs("minutes")

OFTEN: Final[dict[str, Any]] = {"splits": {"train": 1000}, "session_timeout": 1.5, "era_max_seconds": 0.25}
"""Settings with which eras are closed all the time: many of them in a short test."""


@contextmanager
def watched(settings: Settings) -> Iterator[Counter[str]]:
    """Read the eras on the control topics again and again: they are added to, and nothing else. Yield how often."""
    looks, seen, client = Counter[str](), dict[str, list[bytes]](), oracle.new_reader(settings.bootstrap_servers)

    def look() -> None:
        for stream in settings.streams():
            before, now = seen.get(stream.name, []), oracle.eras_of(settings, stream, client)
            assert now[: len(before)] == before, f"{stream.name}: eras changed"
            seen[stream.name] = now
        looks["looks_at_eras"] += 1

    with beside(0.3, look):
        yield looks
    look()
    client.close()


@contextmanager
def other_settings(service: Service, settings: Settings) -> Iterator[None]:
    own, service.settings = service.settings, settings
    yield
    service.settings = own


def drop(service: Service, worker: Worker) -> None:
    worker.kill()
    service.workers.remove(worker)


def ignored(settings: Settings) -> int:
    """Return how many era records on the control topics are no eras."""
    written = [kept for stream in settings.streams() for kept in oracle.read_topic(settings, stream.control_topic)]
    return sum(kept.key == b"era" for kept in written) - sum(
        len(oracle.eras_of(settings, s)) for s in settings.streams()
    )


def has_eras(settings: Settings, more_than: int) -> Callable[[], bool]:
    return lambda: sum(len(oracle.eras_of(settings, stream)) for stream in settings.streams()) > more_than


@contextmanager
def two_stores(settings: Settings, trial: Trial) -> Iterator[Breakable]:
    """Run a service with two stores; in the end, judge, and both must come to have the same eras, byte for byte."""
    other = settings.model_copy(update={"store": settings.store.with_name("other")})
    with Breakable(settings, settings.store.parent) as service:
        service.segment()
        with other_settings(service, other):
            service.segment()
        yield service
        _, chains = oracle.judge(service, trial)
        service.wait_until(lambda: oracle.store_is_complete(other, chains) and oracle.eras_are_complete(other, chains))
        for stream in other.streams():
            assert oracle.stored_eras(other, stream) == oracle.stored_eras(settings, stream)


def have(settings: Settings, count: int) -> bool:
    found = {stream: oracle.eras_of(settings, stream) for stream in settings.streams()}
    return all(len(eras) >= count and oracle.stored_eras(settings, stream) == eras for stream, eras in found.items())


@pytest.mark.fault("era-step-killed")
def test_mill_killed_at_any_step_of_closing_leaves_one_chain(configured: Configured, trial: Trial) -> None:
    """Mills of one group die before and after reading, measuring and writing; two stores and a reader agree."""
    settings = configured(2, **OFTEN)
    steps = [(step, side) for step in CLOSING for side in SIDES] * trial.rounds(1, 4)
    points = [Failpoint(*step, trial.rng.choice((1, 2, 3))) for step in trial.rng.sample(steps, len(steps))]
    writing = Failpoint("era", trial.rng.choice(SIDES), 1)
    with two_stores(settings, trial) as service, Feeder(settings, trial.rng, burst=1):
        for point in [writing, *points[: trial.rounds(2, len(points))]]:
            service.mill_until(point)
            trial.fired(f"mill SIGKILL {point.side} {point.step}")
        with watched(settings) as looks:
            service.mill()
            service.wait_until(has_eras(settings, 1))
    trial.held(**looks)


@pytest.mark.fault("eras-contested", "mill-stopped")
def test_stopped_mill_comes_back_with_an_era_that_nobody_takes(configured: Configured, trial: Trial) -> None:
    """It stands in the middle of closing until another has closed eras, and goes on with what it had in mind."""
    settings = configured(2, **OFTEN)
    points = [Failpoint("era", "before", 2, "STOP")]
    if trial.full:
        points += [Failpoint(step, side, 3, "STOP") for step in CLOSING for side in SIDES]
    with two_stores(settings, trial) as service, Feeder(settings, trial.rng, burst=1), watched(settings) as looks:
        for point in points:
            zombie = service.mill_at(point)
            service.wait_until(lambda: psutil.Process(zombie.process.pid).status() == psutil.STATUS_STOPPED)  # noqa: B023 - called before the next round
            (heir,) = service.mill()
            before, known = ignored(settings), len(oracle.eras_of(settings, settings.streams()[0]))
            service.wait_until(has_eras(settings, known + 1))
            zombie.resume()
            if point.step == "era" and point.side == "before":
                service.wait_until(lambda: ignored(settings) > before)  # noqa: B023
                trial.fired("era of a stopped mill that came too late")
            trial.fired(f"mill SIGSTOP {point.side} {point.step}")
            for mill in (zombie, heir):
                drop(service, mill)
        service.mill()
    trial.held(**looks)


@pytest.mark.fault("eras-contested", "stream-shared")
def test_two_mills_that_both_own_partition_0_close_one_chain(configured: Configured, trial: Trial) -> None:
    """Two groups mill one stream and close its eras; each dies between its writing and its reading back."""
    settings = configured(2, **OFTEN)
    second = settings.model_copy(update={"group": f"{settings.group}-by-mistake"})
    with two_stores(settings, trial) as service, Feeder(settings, trial.rng, burst=2), watched(settings) as looks:
        service.mill()
        for number in range(trial.rounds(1, 10)):
            with other_settings(service, second):
                service.mill_until(Failpoint("era", "after", trial.rng.randint(2, 5)))
            trial.fired("second owner SIGKILL after its era")
            if number % 2:
                drop(service, service.workers[-1])
                service.mill()
        with other_settings(service, second):
            service.mill()
        began = len(oracle.eras_of(settings, settings.streams()[0]))
        service.wait_until(has_eras(settings, began + 4))
    trial.fired("eras of two owners at once, of which one was ignored", ignored(settings))
    trial.held(**looks)


@pytest.mark.fault("eras-owner-halted", "logs-rewritten")
def test_owner_whose_own_chain_stands_closes_eras_for_the_others(configured: Configured, trial: Trial) -> None:
    """Partition 0 contradicts itself: its mill halts, and no era takes more of it; partition 1 goes on."""
    settings = configured(2, **OFTEN)
    (stream,) = settings.streams()
    send(settings, [Raw(4 * TEXT, number % 2) for number in range(40)])
    with working(settings) as service:
        mill, _ = service.workers
        chains = service.wait_until_complete()
        service.wait_until(lambda: sum(stops_of(oracle.eras_of(settings, stream))) == sum(map(len, chains.values())))
        before = stops_of(oracle.eras_of(settings, stream))
        mill.stop()
        send(settings, [raw_of(forged(oracle.token_messages(settings, stream)[-1]))], stream.tokens_topic)
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{settings.raw_topics[0]}/0")))
        send(settings, [Raw(4 * TEXT, number % 2) for number in range(40)])
        flush_all(settings)
        wanted = len(oracle.expected_chains(settings)[1].blocks)
        service.wait_until(lambda: stops_of(oracle.eras_of(settings, stream)) == [before[0], wanted])
        service.wait_until(lambda: oracle.stored_eras(settings, stream) == oracle.eras_of(settings, stream))
        assert wanted > before[1]
        assert "no era takes blocks of this partition" in mill.log
    trial.fired("partition that contradicts itself")
    trial.held("eras", "loud")


def assert_lost_eras_are_noticed(settings: Settings, lose: Callable[[Stream, list[bytes]], None], trial: Trial) -> None:
    """Fill a store, lose eras, go on: the store keeps its eras and says so, a new one follows what stands there."""
    (stream,) = settings.streams()
    with working(settings) as service:
        for number in (1, 2):
            send(settings, [Raw(4 * TEXT)] * 20)
            service.wait_until_complete()
            service.wait_until(lambda: have(settings, number))  # noqa: B023 - called before the next round
        service.stop()
    had = oracle.stored_eras(settings, stream)
    lose(stream, had)
    send(settings, [Raw(4 * TEXT)] * 20)
    new = settings.model_copy(update={"store": settings.store.with_name("new")})
    with Service(settings, settings.store.parent) as service:
        worker = service.segment()
        with other_settings(service, new):
            service.segment()
        service.mill()
        service.wait_until(lambda: oracle.read_control(settings, stream).genesis is not None)
        flush_all(settings)
        chains = oracle.expected_chains(settings)
        service.wait_until(lambda: oracle.store_is_complete(settings, chains) and oracle.store_is_complete(new, chains))
        service.wait_until(lambda: oracle.eras_are_complete(new, chains))
        service.wait_until(lambda: "no more eras are stored" in worker.log)
        assert "is not on its control topic any more" in worker.log
        assert oracle.stored_eras(settings, stream) == had
        assert oracle.assert_eras_right(new, chains)
    trial.held("eras", "loud", "complete")


@pytest.mark.fault("eras-lost")
def test_store_halts_where_its_eras_topic_was_made_anew(configured: Configured, trial: Trial) -> None:
    """Who has eras that no topic tells of keeps them; blocks go on, and who has none follows the new ones."""
    settings = configured(**OFTEN)

    def lose(stream: Stream, _: list[bytes]) -> None:
        in_own_loop(partial(make_anew, settings, stream.control_topic))
        oracle.shared_reader.cache_clear()
        trial.fired("control topic made anew")

    assert_lost_eras_are_noticed(settings, lose, trial)


@pytest.mark.fault("eras-lost", "logs-rewritten")
def test_store_halts_where_the_control_topic_lost_an_era_that_it_has(tmp_path: Path, trial: Trial) -> None:
    """A broker comes back without the last era that it acknowledged, and another one takes its place."""
    with Broker(tmp_path / "broker") as broker:
        settings = service_settings(broker, topics_on(broker, "eras")(), tmp_path, **OFTEN)

        def lose(stream: Stream, had: list[bytes]) -> None:
            broker.kill()
            trial.fired("era lost after its acknowledgement", cut(broker, stream.control_topic, -1))
            broker.start()
            assert oracle.eras_of(settings, stream) == had[:-1]

        assert_lost_eras_are_noticed(settings, lose, trial)


def trainable(settings: Settings) -> list[bool]:
    (stream,) = settings.streams()
    info = read_stream(settings.store, stream.name)
    order: dict[str, Any] = {"seed": 0, "shuffle": False, "eras": (0, None), "passes": 1}
    own: dict[str, Any] = {"fingerprint": info.fingerprint.hex(), "sequence_length": info.block_tokens - 1}
    sequence = SequenceId(stream=stream.name, **own, **order)
    samples = TrainableSamples(settings.store, info, sequence, 1, check=False, on_damage="refuse")
    samples.eras.refresh()
    return [samples.is_trainable(samples.eras.era(number)) for number in range(samples.eras.eras)]


@pytest.mark.fault("eras-behind", "era-files-broken")
def test_eras_before_their_blocks_wait_and_damaged_ones_are_written_anew(configured: Configured, trial: Trial) -> None:
    """A directory that is held keeps blocks, or eras, away; a damaged file of eras is named, and made again."""
    settings = configured(2, **OFTEN)
    (stream,) = settings.streams()
    directory = stream_directory(settings.store, stream.name)
    with working(settings) as service:
        _, segment = service.workers
        service.wait_until(partition_directory(settings.store, stream.name, 1).exists)
        drop(service, segment)
        with PartitionLock(partition_directory(settings.store, stream.name, 1)):
            segment = service.segment()
            send(settings, [Raw(4 * TEXT, number % 2) for number in range(40)])
            flush_all(settings)
            service.wait_until(lambda: stops_of(oracle.stored_eras(settings, stream))[1:] > [0])
            service.wait_until(lambda: bool(trainable(settings)))  # a line counts when its row is there, a sync later
            assert not all(trainable(settings))
            trial.fired("era in the store before its blocks")
        service.wait_until(lambda: all(trainable(settings)))
        oracle.judge(service, trial)
        kept = len(oracle.stored_eras(settings, stream))
        drop(service, segment)
        with PartitionLock(directory):
            segment = service.segment()
            send(settings, [Raw(4 * TEXT, number % 2) for number in range(40)])
            flush_all(settings)
            service.wait_until(lambda: oracle.store_is_complete(settings, oracle.expected_chains(settings)))
            service.wait_until(lambda: "waiting for the eras' files" in segment.log)
            assert len(oracle.stored_eras(settings, stream)) == kept
            trial.fired("blocks in the store before their eras")
        oracle.judge(service, trial)
        for name in (ERA_LINES_FILE, ERA_INDEX_FILE):
            drop(service, segment)
            right = {path: (directory / path).read_bytes() for path in (ERA_LINES_FILE, ERA_INDEX_FILE)}
            damage(directory / name, trial)
            segment = service.segment()
            service.wait_until(lambda: is_refused(segment, name) or is_whole(settings, stream))  # noqa: B023 - so far
            if not is_refused(segment, name):  # the row was of the last commit, which may have been cut off
                trial.fired(f"{name} healed by itself")
                continue
            drop(service, segment)
            for path in right:
                (directory / path).unlink()
            segment = service.segment()
            service.wait_until(lambda: oracle.stored_eras(settings, stream) == oracle.eras_of(settings, stream))
            assert (directory / ERA_LINES_FILE).read_bytes() == right[ERA_LINES_FILE]
        oracle.judge(service, trial)
        assert is_whole(settings, stream)
    trial.held("loud")


def is_refused(worker: Worker, name: str) -> bool:
    return "no more eras are stored" in worker.log and name in worker.log


def is_whole(settings: Settings, stream: Stream) -> bool:
    """Return whether the store has every era of the topic, and its files can be read."""
    try:
        reader = open_eras(settings.store, stream.name)
        return [reader.era(number).pack() for number in range(reader.eras)] == oracle.eras_of(settings, stream)
    except DamagedError:
        return False


def damage(path: Path, trial: Trial) -> None:
    """Flip a bit of the first era, or of its row; all others stand behind it."""
    data = bytearray(path.read_bytes())
    data[trial.rng.randrange(40)] ^= 1 << trial.rng.randrange(8)
    path.write_bytes(data)
    trial.fired(f"bit flipped in {path.name}")
