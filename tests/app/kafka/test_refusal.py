"""What brokers refuse is one line that names the setting, and never an endless retry."""

import asyncio
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import until
from tests.commands import run
from tests.conftest import topics_on
from tests.secured import GUEST, NEEDLE, Secured, add_user, remove_user
from tests.service import service_settings
from tokenmill.app.kafka.clients import admin, consumer, producer, require_group
from tokenmill.app.kafka.control_topic import read_control_topic
from tokenmill.app.kafka.security import why_not
from tokenmill.app.kafka.topics import require_topics
from tokenmill.app.settings import ConnectionSettings, Settings
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import BrokerError, SettingsError, TopicError

# aiokafka leaves the socket of a login that was refused to the garbage collector, where the loop ends at once.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WRONG = "ch4ff-not-grain"
LOGIN_REFUSED = "refuses the login of miller by {} .*; correct sasl_username, sasl_password, or sasl_mechanism$"
NO_KEYS = dict.fromkeys(("ssl_certfile", "ssl_keyfile", "ssl_keyfile_password"))
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("SASL_SSL", {"sasl_password": WRONG, "sasl_mechanism": "PLAIN"}, LOGIN_REFUSED.format("PLAIN")),
    ("SASL_SSL", {"sasl_password": WRONG, "sasl_mechanism": "SCRAM-SHA-256"}, LOGIN_REFUSED.format("SCRAM-SHA-256")),
    ("SASL_SSL", {"sasl_password": WRONG, "sasl_mechanism": "SCRAM-SHA-512"}, LOGIN_REFUSED.format("SCRAM-SHA-512")),
    ("SASL_PLAINTEXT", {"sasl_username": "nobody"}, "refuses the login of nobody"),
    ("SASL_SSL", {"ssl_cafile": "other-ca.pem"}, "authorities in .*other-ca.pem did not sign it; set ssl_cafile"),
    ("SASL_SSL", {"ssl_cafile": None}, "the system's authorities did not sign it; set ssl_cafile"),
    (
        "SASL_SSL",
        {"bootstrap_servers": "localhost"},
        "not valid for 'localhost'.*set bootstrap_servers .*ssl_check_hostname",
    ),
    ("SSL", NO_KEYS, "wants a certificate of its clients .*; set ssl_certfile and ssl_keyfile"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect such a socket where its warning is ignored; a later test of the process would fail by it."""
    yield
    gc.collect()


def wrong(secured: Secured, protocol: str, changes: dict[str, Any]) -> Settings:
    changes = dict(changes)
    if changes.get("ssl_cafile"):
        changes["ssl_cafile"] = secured.directory / changes["ssl_cafile"]
    if "bootstrap_servers" in changes:
        changes["bootstrap_servers"] = secured.broker.address(protocol).replace("127.0.0.1", "localhost")
    return secured.settings(protocol, **changes)


@pytest.mark.parametrize(("protocol", "changes", "words"), CASES)
@pytest.mark.cases(2)
async def test_what_only_a_person_can_mend_is_a_settings_error(
    secured: Secured, protocol: str, changes: dict[str, Any], words: str
) -> None:
    settings = wrong(secured, protocol, changes)
    for client in (producer, consumer, admin):
        with pytest.raises(SettingsError, match=words) as caught:
            async with client(settings):
                pass
        assert WRONG not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "case"),
    [
        pytest.param(role, CASES[case], id=f"{role} {case}", marks=() if here else pytest.mark.needs("minutes"))
        for role, mine in (("serve", 1), ("mill", 4), ("segment", 6))
        for case in (1, 4, 6)
        for here in (case == mine,)
    ],
)
def test_the_service_ends_with_one_line(
    secured: Secured, tmp_path: Path, role: str, case: tuple[str, dict[str, Any], str]
) -> None:
    """Exit code 2, which is what a supervisor does not start again; and the password is in no line."""
    protocol, changes, words = case
    settings = wrong(secured, protocol, changes).model_copy(update={"tokenizer": "bytes"})
    code, said = run([role], tmp_path / "log", settings.environment(), tmp_path)
    assert code == 2, said
    assert len([line for line in said.splitlines() if re.search(words.rstrip("$"), line)]) == 1, said
    assert "Traceback" not in said
    assert NEEDLE not in said
    assert WRONG not in said


async def test_a_listener_of_another_kind_is_told_from_one_that_is_not_there(secured: Secured) -> None:
    """A broker that stops closes connections too, so it may be tried again; the setting is named all the same."""
    address = secured.broker.address("SASL_SSL")
    for settings in (
        ConnectionSettings(bootstrap_servers=address),
        secured.settings("SSL", bootstrap_servers=secured.broker.bootstrap_servers),
        secured.settings("SASL_PLAINTEXT", bootstrap_servers=address),
    ):
        found = await why_not(settings)
        assert isinstance(found, BrokerError)
        assert f"another security_protocol than {settings.security_protocol}" in str(found)
    assert await why_not(ConnectionSettings(bootstrap_servers="127.0.0.1:1,nowhere.invalid:9092")) is None
    without_logins = secured.settings("SASL_PLAINTEXT", bootstrap_servers=secured.broker.bootstrap_servers)
    with pytest.raises(SettingsError, match="takes no logins, and security_protocol is SASL_PLAINTEXT"):
        async with admin(without_logins):
            pass


async def test_one_brokers_refusal_is_said_though_another_is_away(secured: Secured) -> None:
    servers = f"127.0.0.1:1,{secured.broker.address('SASL_SSL')}"
    found = await why_not(secured.settings("SASL_SSL", sasl_password=WRONG, bootstrap_servers=servers))
    assert isinstance(found, SettingsError)


@pytest.mark.needs("minutes")
async def test_a_login_that_is_taken_away_ends_the_service(secured: Secured, tmp_path: Path) -> None:
    """Whichever process is refused first, the service ends with its words, and does not go on trying in its logs."""
    add_user(secured.broker, GUEST)
    raw = topics_on(secured.broker, "taken-away")(1)
    login = secured.values("SASL_SSL", sasl_username=GUEST)
    settings = service_settings(secured.broker, raw, tmp_path, workers=1, **login)
    supervisor = Supervisor(settings, limits=WatchLimits(first_backoff=0.1), log_directory=tmp_path)

    async def take_it_away() -> None:
        await until(lambda: all(worker.partitions for worker in supervisor.status().workers))
        remove_user(secured.broker, GUEST)
        supervisor.kill("mill-1", "the test wants it")

    with pytest.raises(SettingsError, match=f"refuses the login of {GUEST} by SCRAM-SHA-512"):
        async with asyncio.timeout(90):
            await asyncio.gather(supervisor.run(), take_it_away())
    logs = "".join((tmp_path / f"{worker}.log").read_text() for worker in ("mill-1", "segment"))
    # A worker's new login is refused, or the supervisor's own before that: it looks at the group.
    assert logs.count(f"refuses the login of {GUEST}") <= 1
    assert NEEDLE not in logs


async def test_rights_that_are_missing_are_named(secured: Secured, tmp_path: Path) -> None:
    """To send, to see a topic, and to join a group, where Faust would stand still in silence."""
    add_user(secured.broker, "visitor")
    raw = topics_on(secured.broker, "forbidden")(1)
    settings = service_settings(secured.broker, raw, tmp_path, **secured.values("SASL_SSL"))
    visitor = settings.model_copy(update={"sasl_username": "visitor"})
    with pytest.raises(SettingsError, match=r"do not allow this to visitor \(.*ClusterAuthorization.*grant it"):
        async with producer(visitor):
            pass
    with pytest.raises(TopicError, match=r"do not describe topic \S+: Topic authorization failed"):
        await require_topics(visitor)
    for missing in ("", "-that-is-not-there"):  # to a visitor, brokers answer the same for both
        with pytest.raises(SettingsError, match=rf"do not allow this to visitor \(.*{raw}{missing}\): grant it"):
            await read_control_topic(visitor, raw + missing)
    with pytest.raises(SettingsError, match=rf"do not allow this to visitor \(.*{settings.group}\): grant it"):
        await require_group(visitor, visitor.group)
    await require_group(settings, settings.group)
