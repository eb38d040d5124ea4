"""Duplicates in a service that is broken: what is kept stays what one order keeps, or it halts and says why."""

import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.app.sequencer.judged_order import are_signed, domain_settings, feed, records_of, require_one_order
from tests.conftest import TopicFactory, topics_on
from tests.faults.altering import cut, delete_records, grow
from tests.faults.serving import halted
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify import verify

pytestmark = pytest.mark.needs("minutes")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker that a test may kill."""
    with Broker(tmp_path / "broker") as broker:
        yield broker


@pytest.mark.fault("duplicates-killed")
@pytest.mark.timeout(3600)
def test_kills_change_nothing_that_is_kept(own: Broker, tmp_path: Path, trial: Trial) -> None:
    """Of mills and sequencers, some of which are only stopped, and go on beside the next; and of the broker."""
    settings = domain_settings(own, topics_on(own, "judged"), tmp_path)
    settings = settings.model_copy(update={"session_timeout": 2.0})
    with Service(settings, tmp_path) as service:
        service.segment()
        stopped = deque[Worker]()
        for number in range(trial.rounds(9, 100)):
            feed(settings, trial.rng, 40)
            time.sleep(trial.rng.uniform(0, 3))
            if number % 5 == 0:
                own.kill()
                own.start()
                trial.fired("broker SIGKILL")
            service.tend()
            at_work = [one for one in service.workers if one.running and one not in stopped]
            at_work = [one for one in at_work if one.role != "segment"]
            roles = [one.role for one in at_work]
            at_work += service.mill(max(2 - roles.count("mill"), 0))
            at_work += [] if "sequencer" in roles else [service.sequencer()]
            worker = trial.rng.choice(at_work)
            if number % 3:
                worker.kill()
            else:
                worker.pause()
                stopped.append(worker)
            trial.fired(f"{worker.role} {'SIGKILL' if number % 3 else 'SIGSTOP'}")
            if len(stopped) > 1:
                stopped[-2].resume()  # it goes on beside the one in its place
            if len(stopped) > 3:  # all but the last may have gone on
                stopped.popleft().kill()
        service.tend()
        service.mill()
        service.sequencer()
        for worker in service.workers:
            worker.resume()
        require_one_order(service)
        require_verified(settings)
    trial.held("exact", "complete")


@pytest.mark.fault("duplicates-killed")
@pytest.mark.parametrize("packing", ["rows", '{"name": "chunks", "chunk_tokens": 126, "rest": "pad"}', "fit"])
def test_every_packing_keeps_the_same(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial, packing: str
) -> None:
    """And partitions that are added are judged with the others."""
    settings = domain_settings(broker, topic, tmp_path, packing)
    with Service(settings, tmp_path) as service:
        service.segment()
        running = [*service.mill(), service.sequencer()]
        for number in range(trial.rounds(3, 12)):
            feed(settings, trial.rng, 60)
            time.sleep(trial.rng.uniform(0, 2))
            worker = running.pop(number % 2)
            worker.kill()
            trial.fired(f"{worker.role} SIGKILL")
            running.insert(number % 2, service.sequencer() if worker.role == "sequencer" else service.mill()[0])
            if number == 1:
                grow(settings, settings.raw_topics[0], 3)
                send(settings, [Raw(b"river stone light, in a partition that is new", 2)] * 20)
        require_one_order(service)
        require_verified(settings)
    trial.held("exact", "complete")


@pytest.mark.fault("verdicts-lost")
def test_lost_tails_of_verdicts_heal_and_those_of_signatures_halt(own: Broker, tmp_path: Path, trial: Trial) -> None:
    """What was signed says again what was judged; without it, verdicts are out that nobody can find out again."""
    settings = domain_settings(own, topics_on(own, "judged"), tmp_path)
    (domain,) = settings.domains()
    lost = domain.verdicts_topic(settings.raw_topics[0])
    for _ in range(3):
        feed(settings, trial.rng, 60)
        with Service(settings, tmp_path) as service:
            everything(service)
            require_one_order(service)
            service.stop()
        own.kill()
        trial.fired("verdicts lost", cut(own, lost, -1))
        own.start()
    own.kill()
    trial.fired("signatures lost", cut(own, domain.signatures_topic, -2))
    own.start()
    with Service(settings, tmp_path) as service:
        mill, _, sequencer = everything(service)
        service.wait_until(lambda: "lost messages of which verdicts are out" in halt_of(sequencer))
        feed(settings, trial.rng, 60)
        service.wait_until(
            lambda: any("see that a sequencer runs" in str(one["waiting"]) for one in mill.partitions.values())
        )
    trial.held("exact", "complete", "loud")


@pytest.mark.fault("verdicts-lost")
def test_other_texts_than_were_signed_halt(own: Broker, tmp_path: Path, trial: Trial) -> None:
    """A raw log is rewritten after its texts were signed and before they are milled; the other partitions go on."""
    settings = domain_settings(own, topics_on(own, "judged"), tmp_path)
    (domain,), rewritten = settings.domains(), settings.raw_topics[0]
    for _ in range(2):  # two batches, of which one is lost
        feed(settings, trial.rng, 60)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(partial(are_signed, settings, domain))
    own.kill()
    trial.fired("raw texts lost", cut(own, rewritten, -1))
    own.start()
    send(settings, [Raw(b"another text than was there")] * 60, rewritten)
    with Service(settings, tmp_path) as service:
        mill, _, _ = everything(service)
        service.wait_until(lambda: "what was judged" in halted(mill, f"{rewritten}/0"))
        assert not [name for name, one in mill.partitions.items() if one["halted"] and name != f"{rewritten}/0"]
    trial.held("loud")


@pytest.mark.fault("verdicts-lost")
def test_retention_that_takes_what_is_needed_halts(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """Of verdicts that are not milled, a mill's partition; of the window's signatures, the sequencer."""
    settings = domain_settings(broker, topic, tmp_path)
    (domain,), raw_topic = settings.domains(), settings.raw_topics[0]
    verdicts = domain.verdicts_topic(raw_topic)
    feed(settings, trial.rng, 60)
    with Service(settings, tmp_path) as service:
        (mill,) = service.mill()
        service.wait_until(partial(are_signed, settings, domain))
        mill.kill()
        service.sequencer()
        service.wait_until(lambda: bool(records_of(settings, verdicts)))
    delete_records(settings, verdicts, 0, len(records_of(settings, verdicts)))
    delete_records(settings, domain.signatures_topic, 0, 1)
    trial.fired("retention", 2)
    with Service(settings, tmp_path) as service:
        mill, _, sequencer = everything(service)
        service.wait_until(lambda: "no longer has the verdicts behind offset 0" in halted(mill, f"{raw_topic}/0"))
        service.wait_until(lambda: "no longer has the window" in halt_of(sequencer))
    trial.held("loud")


def everything(service: Service) -> tuple[Worker, Worker, Worker]:
    return service.mill()[0], service.segment(), service.sequencer()


def halt_of(sequencer: Worker) -> str:
    return str(next(iter(sequencer.partitions.values()), {}).get("halted") or "")


def require_verified(settings: Settings) -> None:
    """Compute signatures, verdicts and blocks again, while the service runs."""
    result = verify(settings, store=settings.store, processes=1)
    assert result.differences == []
    (domain,) = result.domains
    assert domain.documents == sum(chain.totals.kept for chain in result.chains) + sum(domain.duplicates.values())
