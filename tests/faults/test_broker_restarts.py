"""The only broker goes, in order and by SIGKILL, under load: everything arrives once it is back."""

import random
import time
from pathlib import Path

from tests.conftest import topics_on
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.service import Service, service_settings
from tokenmill.app.broker import Broker


def test_restarted_broker_loses_and_repeats_nothing(tmp_path: Path, rng: random.Random) -> None:
    """Workers hold out or end and are started again; store and topics are equal to the reference."""
    with Broker(tmp_path / "broker") as broker:
        raw_topic = topics_on(broker, "restarts")(2)
        settings = service_settings(broker, raw_topic, tmp_path, session_timeout=2.0, splits={"train": 900, "dev": 100})
        with Service(settings, tmp_path) as service:
            with Feeder(settings, rng) as feeder:
                service.mill()
                service.segment()
                for end in (broker.stop, broker.kill):
                    service.wait_until(lambda: all(worker.partitions for worker in service.workers))
                    time.sleep(rng.uniform(0.5, 1.5))
                    sent = feeder.sent
                    end()
                    assert not broker.running
                    time.sleep(rng.uniform(0, 1))
                    broker.start()
                    service.tend()
                    service.wait_until(lambda sent=sent: feeder.sent > sent)  # type: ignore[misc]
            judge(service)
            print(f"{service.started} workers were started")  # noqa: T201 - two, if both held out
