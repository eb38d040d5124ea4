"""How a worker's process ends."""

import os
from pathlib import Path

import pytest

from tests.app.broken import ENTRY, VARIABLE
from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.kafka import fastpath
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import run as worker_module
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.app.worker.transport import BatchApp


def test_a_worker_that_cannot_stop_in_order_ends_all_the_same(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Before a container engine or a supervisor would lose patience, with the code of an orderly end."""
    with Service(service_settings(broker, topic(), tmp_path), tmp_path, **{VARIABLE: "stubborn"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        service.wait_until(lambda: bool(mill.partitions))
        assert mill.stop() == 0
        assert "did not stop in order in 8 s" in mill.log


def test_a_worker_that_crashed_does_not_end_as_if_it_were_asked_to(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Whoever starts failed workers anew sees by the code that this one failed."""
    with Service(service_settings(broker, topic(), tmp_path), tmp_path, **{VARIABLE: "crashing"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        assert service.wait_until_ended(mill) == RESUME_CODE
        assert "did not stop in order in 8 s" in mill.log


@pytest.mark.parametrize(("said", "expected"), [(None, "3"), ("5", "5")])
def test_a_tokenizer_has_the_threads_of_the_settings(
    said: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the environment says otherwise; it is set before the first text is encoded."""
    seen = []

    def run(_worker: worker_module.Worker) -> None:
        seen.append(os.environ.get("RAYON_NUM_THREADS"))
        raise SystemExit

    monkeypatch.setattr(worker_module.Worker, "execute_from_commandline", run)
    monkeypatch.setattr(worker_module, "keep_loaded", lambda: None)
    monkeypatch.setattr(fastpath, "install", lambda: False)  # it would stay for other tests
    monkeypatch.setenv("RAYON_NUM_THREADS", "")
    monkeypatch.delenv("RAYON_NUM_THREADS")
    if said is not None:
        monkeypatch.setenv("RAYON_NUM_THREADS", said)
    app = BatchApp("threads", broker="kafka://127.0.0.1:1")
    with pytest.raises(SystemExit):
        worker_module.run_worker(app, Settings(tokenizer_threads=3))
    assert seen == [expected]


def test_a_worker_whose_clock_is_ahead_mills_all_the_same(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """The brokers set the time of what it sends to topics that we made: messages, dead letters, genesis, and eras."""
    settings = service_settings(broker, topic(1), tmp_path, splits={"all": 1000})
    with Service(settings, tmp_path, **{VARIABLE: "clock_ahead"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        service.segment()
        send(settings, [*(Raw(b"document %d" % number * 9) for number in range(40)), Raw(b"\xff no text")])
        service.wait_until_complete()
        assert mill.running
        assert "not acknowledged" not in mill.log
