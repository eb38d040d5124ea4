"""A broker that is found, and names an address at which it cannot be reached: every client says which, and why."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka import TopicPartition

from tests.brokers import OpenBroker
from tests.commands import run
from tests.secured import certified
from tokenmill.app import broker_contact
from tokenmill.app.broker_contact import Contact
from tokenmill.app.kafka import clients, cluster
from tokenmill.app.kafka.clients import admin, consumer, offsets, producer
from tokenmill.app.kafka.cluster import Pauses
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError

KINDS = {
    "DNS": "Name or service not known|nodename nor servname|Temporary failure in name resolution",
    "SHUT": "Connect call failed",
    "CLOSES": "Connection at .* closed",
    "DEAF": "no answer in 2 s",
    "TLS": "not valid for 'localhost'",
}
"""Listeners, by what is wrong with the address that each advertises; and how that is said."""


@contextmanager
def closing(server: socket.socket) -> Iterator[int]:
    def accept() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Settings]]:
    """Run a broker with a listener of each kind; return what gives the settings for one."""
    directory, authority = tmp_path_factory.mktemp("advertised"), trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    broker = OpenBroker(directory / "broker", listeners=tuple(KINDS), settings=certified(authority))
    with (
        socket.create_server(("127.0.0.1", 0)) as shut,
        socket.create_server(("127.0.0.1", 0)) as closes,
        socket.create_server(("127.0.0.1", 0)) as deaf,
        closing(closes) as closing_port,
    ):
        advertised = {
            "PLAINTEXT": broker.bootstrap_servers,
            "DNS": "kafka-internal.example:9092",
            "SHUT": f"127.0.0.1:{shut.getsockname()[1]}",
            "CLOSES": f"127.0.0.1:{closing_port}",
            "DEAF": f"127.0.0.1:{deaf.getsockname()[1]}",
            "TLS": broker.address("TLS").replace("127.0.0.1", "localhost"),
        }
        shut.close()
        protocols = {**dict.fromkeys([*advertised, "CONTROLLER"], "PLAINTEXT"), "TLS": "SSL"}
        broker._settings["listener.security.protocol.map"] = ",".join(f"{k}:{v}" for k, v in protocols.items())
        broker._settings["advertised.listeners"] = ",".join(f"{k}://{v}" for k, v in advertised.items())
        with broker:

            def settings_of(kind: str) -> Settings:
                own: dict[str, Any] = {"bootstrap_servers": broker.address(kind), "wait_seconds": 0}
                if kind == "TLS":
                    own |= {"security_protocol": "SSL", "ssl_cafile": directory / "ca.pem"}
                return Settings(**own)

            yield settings_of


async def describes(settings: Settings) -> None:
    async with admin(settings) as client:
        await client.describe_topics(["raw-text"])


async def reads(settings: Settings) -> None:
    async with consumer(settings) as client:
        await offsets(client, [TopicPartition("raw-text", 0)])


async def sends(settings: Settings) -> None:
    async with producer(settings) as client:
        await client.send_and_wait("raw-text", b"a text", partition=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [describes, reads, sends])
@pytest.mark.cases(2)
async def test_every_client_names_the_address_that_cannot_be_reached(
    settings_of: Callable[[str], Settings],
    kind: str,
    use: Callable[[Settings], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contact = Contact()
    for module in (broker_contact, clients, cluster):
        monkeypatch.setattr(module, "CONTACT", contact)
    monkeypatch.setattr(cluster, "PAUSES", Pauses())
    patience = 2000 if kind == "DEAF" else 20_000  # the others are refused: a handshake may take long on a busy machine
    monkeypatch.setattr(clients, "REQUEST_MS", patience)
    monkeypatch.setattr(clients, "DELIVERY_MS", patience)
    settings = settings_of(kind)
    with pytest.raises(BrokerError, match=KINDS[kind]) as caught:
        await asyncio.wait_for(use(settings), 30)
    said = str(caught.value)
    assert said.startswith(f"a broker answers at {settings.bootstrap_servers}, and names an address at which none ")
    assert "advertised.listeners" in said
    assert "broker start" not in said


@pytest.mark.parametrize("command", ["topics check", "serve", "produce raw-text {}", "ledger"])
def test_commands_say_it_in_their_last_line(
    settings_of: Callable[[str], Settings], command: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    own = settings_of("DNS")
    settings = own.model_copy(update={"tokenizer": "bytes", "store": tmp_path / "store", "metrics_port": 0})
    ended = run(command.format(tmp_path / "a.txt").split(), tmp_path / "log", settings.environment())
    assert ended.code == BrokerError.exit_code
    assert "kafka-internal.example:9092" in ended.said.splitlines()[-1]
    assert "no broker answers" not in ended.said
