"""How a worker's process ends."""

from pathlib import Path

from tests.conftest import TopicFactory
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker


class Stubborn(Service):
    """A service whose workers do not stop in order."""

    entry = "tests.app.stubborn"


def test_a_worker_that_cannot_stop_in_order_ends_all_the_same(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Before a container engine or a supervisor would lose patience, with the code of an orderly end."""
    with Stubborn(service_settings(broker, topic(), tmp_path), tmp_path) as service:
        (mill,) = service.mill()
        service.wait_until(lambda: bool(mill.partitions))
        assert mill.stop() == 0
        assert "did not stop in order in 8 s" in mill.log
