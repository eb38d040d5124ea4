"""Workers that nobody supervises, and that stand still."""

import time
from pathlib import Path

from tests.app.broken import PATIENCE, VARIABLE
from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.ending import RESUME_CODE
from tokenmill.app.local.broker import Broker


class Broken(Service):
    """A service whose workers are alone."""

    entry = "tests.app.broken"


def test_workers_that_stand_still_end_themselves(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """One whose group gave it partitions of which it knows nothing, one that never ends with a batch; no other."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, metrics_port=0)
    with Broken(settings, tmp_path) as service:
        (well,) = service.mill()
        (deaf,) = service.mill(environment={VARIABLE: "deaf"})
        assert service.wait_until_ended(deaf) == RESUME_CODE
        assert f"for {PATIENCE.unowned:.0f} s" in deaf.log
        assert "nobody has owned" in deaf.log

        (stuck,) = service.mill(environment={VARIABLE: "stuck"})
        service.wait_until(lambda: "partition resumed" in stuck.log)
        send(settings, [Raw(b"a document" * 50, number % 2) for number in range(20)])
        assert service.wait_until_ended(stuck) == RESUME_CODE
        assert "stands still at" in stuck.log

        store = service.segment()
        service.wait_until_complete()
        time.sleep(PATIENCE.still + 3)  # nothing comes: nobody minds
        assert well.running
        assert store.running
