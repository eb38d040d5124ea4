"""Workers that nobody supervises, and that stand still."""

from pathlib import Path

from tests.app.broken import ENTRY, PATIENCE, VARIABLE
from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.worker.ending import RESUME_CODE


def test_workers_that_stand_still_end_themselves(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A mill that knows nothing of what its group gave it, a segment worker that never ends with a batch; no other."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, metrics_port=0)
    with Service(settings, tmp_path) as service:
        service.entry = ENTRY
        (well,) = service.mill(environment={VARIABLE: "impatient"})
        (deaf,) = service.mill(environment={VARIABLE: "deaf"})
        assert service.wait_until_ended(deaf) == RESUME_CODE  # meanwhile nothing comes: the other one does not mind
        assert f"for {PATIENCE.unowned:.0f} s" in deaf.log
        assert "nobody has owned" in deaf.log
        send(settings, [Raw(b"a document" * 50, number % 2) for number in range(20)])
        stuck = service.segment(environment={VARIABLE: "stuck"})
        assert service.wait_until_ended(stuck) == RESUME_CODE
        assert "makes no progress at" in stuck.log
        assert well.running
