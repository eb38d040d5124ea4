"""A login ends: brokers end each connection whose token is over, again and again, under load."""

import time
from pathlib import Path
from typing import Final

import pytest

from tests.brokers import OpenBroker
from tests.conftest import topics_on
from tests.faults.alive import assert_alive_again
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.trial import Trial
from tests.secured import MODULES, PASSWORD, USER, TokenEndpoint
from tests.service import Service, service_settings

LISTENER: Final = "SASL_PLAINTEXT"
SECONDS: Final = 1.0
"""For which a token holds."""
BROKER: Final = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": MODULES["OAUTHBEARER"],
    "connections.max.reauth.ms": "60000",
}
"""With a bound, of any length, brokers end a connection when its token ends (KIP-368)."""


@pytest.mark.fault("token-expires")
@pytest.mark.timeout(1800)
@pytest.mark.needs("minutes")
@pytest.mark.parametrize("entry", ["tokenmill.app.cli", "tests.app.stock_aiokafka"])
def test_logins_that_end_lose_and_halt_nothing(tmp_path: Path, trial: Trial, entry: str) -> None:
    """What was under way on a connection that ends is sent and read again, with the fast path and without it."""
    with (
        OpenBroker(tmp_path / "broker", settings=BROKER, listeners=(LISTENER,)) as broker,
        TokenEndpoint(seconds=SECONDS) as endpoint,
    ):
        settings = service_settings(broker, topics_on(broker, "logins")(2), tmp_path)
        login = {"bootstrap_servers": broker.address(LISTENER), "security_protocol": LISTENER}
        its = settings.model_copy(update=login | {"sasl_username": USER, "sasl_password": PASSWORD} | endpoint.values)
        with Service(settings, tmp_path, **its.environment()) as service:
            service.entry = entry
            workers = [*service.mill(2), service.segment()]
            assert_alive_again(service, trial)
            with Feeder(settings, trial.rng):
                time.sleep(trial.rounds(8, 110) * SECONDS)
                assert_alive_again(service, trial)
            judge(service, trial)
            assert all(worker.running for worker in workers)
            assert all(worker.log.count("Traceback") == 0 for worker in workers)
        trial.fired("new logins", len(endpoint.asked) - len(workers))
        assert trial.faults["new logins"] >= trial.rounds(8, 110)
