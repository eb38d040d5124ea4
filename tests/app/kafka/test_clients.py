"""Kafka clients: what they read, how long they try again, and what they say of brokers that are not there."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trustme
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaConnectionError
from structlog.testing import capture_logs

from tests.app.conftest import until
from tests.brokers import OpenBroker
from tests.commands import run
from tests.conftest import TopicFactory
from tests.outages import Hands
from tests.secured import certified
from tokenmill.app import broker_contact
from tokenmill.app.broker_contact import Contact
from tokenmill.app.kafka import clients, cluster
from tokenmill.app.kafka.clients import admin, consumer, offsets, producer, read_range
from tokenmill.app.kafka.cluster import Pauses
from tokenmill.app.kafka.topics import ensure_topics, require_topics
from tokenmill.app.settings import Settings
from tokenmill.errors import BrokerError, MissingTopicError, SettingsError, SourceError

PATIENT = Settings(bootstrap_servers="127.0.0.1:1", wait_seconds=30)
"""Nobody is there."""


async def values(settings: Settings, partition: TopicPartition, start: int, end: int) -> list[bytes | None]:
    async with consumer(settings) as client:
        return [record.value async for record in read_range(client, partition, start, end)]


async def fill(settings: Settings, topic: str) -> None:
    """Write two committed transactions around an aborted one, and another aborted one at the end.

    Offsets: 0-1 and a marker, 3-4 aborted and a marker, 6-7 and a marker, 9-10 aborted and a marker.
    """
    async with producer(settings, transactional_id=topic) as client:
        for number in range(4):
            await client.begin_transaction()
            for letter in b"ab":
                await client.send(topic, b"%d%c" % (number, letter), partition=0)
            await (client.abort_transaction() if number % 2 else client.commit_transaction())


async def test_range_ends_where_its_last_offsets_hold_no_record(settings: Settings, topic: TopicFactory) -> None:
    """Markers and aborted records at the end of a range do not make a reader wait for ever."""
    partition = TopicPartition(topic(), 0)
    await fill(settings, partition.topic)
    async with consumer(settings) as client:
        assert await offsets(client, [partition]) == {partition: (0, 12)}
    assert await values(settings, partition, 0, 12) == [b"0a", b"0b", b"2a", b"2b"]
    assert await values(settings, partition, 0, 6) == [b"0a", b"0b"]
    assert await values(settings, partition, 1, 7) == [b"0b", b"2a"]
    assert await values(settings, partition, 12, 12) == []


async def test_range_that_the_log_does_not_hold_is_refused(settings: Settings, topic: TopicFactory) -> None:
    """A reader never jumps to what is there instead, and never waits for what cannot come."""
    partition = TopicPartition(topic(), 0)
    await fill(settings, partition.topic)
    async with admin(settings) as client:
        await client.delete_records({partition: RecordsToDelete(before_offset=6)})
    assert await values(settings, partition, 6, 12) == [b"2a", b"2b"]
    for start, end in ((0, 12), (6, 13), (40, 50)):
        with pytest.raises(SourceError, match="holds offsets 6 to 12"):
            await values(settings, partition, start, end)


@pytest.mark.slow
async def test_every_client_names_a_missing_broker() -> None:
    words = r"no broker answers at 127\.0\.0\.1:1; start one with `tokenmill broker start`"
    for client in (producer, consumer, admin):
        with pytest.raises(BrokerError, match=words):
            async with client(PATIENT):
                pass


async def test_large_records_pass(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(max_message_bytes=settings.max_record_bytes + 1000), 0)
    async with producer(settings) as client:
        await client.send_and_wait(partition.topic, bytes(settings.max_record_bytes), partition=0)
    assert await values(settings, partition, 0, 1) == [bytes(settings.max_record_bytes)]


async def test_a_client_that_cancels_itself_cancels_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "STOP_SECONDS", 0.05)

    stops: list[Any] = [AsyncMock(side_effect=asyncio.CancelledError), asyncio.Event().wait]
    for stop in stops:
        await clients._end(stop)
    with pytest.raises(KafkaConnectionError):
        await clients._end(AsyncMock(side_effect=KafkaConnectionError))


async def test_a_look_is_spared_while_partitions_hold_what_they_did(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, look = TopicPartition(topic(), 0), clients.LastLook()

    async def spared(*, rests: bool = True) -> bool:
        found = await look.finds_nothing(reader, [partition])
        if not found:
            look.took(rests=rests)
        return found

    async with consumer(settings) as reader, producer(settings) as writer:
        assert [await spared(), await spared(), await spared()] == [False, True, True]
        await writer.send_and_wait(partition.topic, b"a", partition=0)
        assert [await spared(rests=False), await spared(), await spared()] == [False, False, True]
        assert not await look.finds_nothing(reader, [])
        monkeypatch.setattr(clients, "WHOLE_LOOK_SECONDS", 0.0)
        await writer.send_and_wait(partition.topic, b"b", partition=0)
        assert [await spared(), await spared()] == [False, False]


async def test_what_comes_in_time_is_waited_for_aloud() -> None:
    errors = [BrokerError("no broker answers at kafka:9092"), MissingTopicError("topic raw-text does not exist")]
    with capture_logs() as lines:
        assert await clients.retry(PATIENT, AsyncMock(side_effect=[*errors, 3])) == 3
    assert [line["reason"] for line in lines] == list(map(str, errors))
    assert {line["log_level"] for line in lines} == {"warning"}


async def test_what_waiting_does_not_mend_is_told_at_once() -> None:
    with capture_logs() as lines, pytest.raises(SettingsError):
        await clients.retry(PATIENT, AsyncMock(side_effect=SettingsError("no tokenizer is set")))
    assert not lines


@pytest.mark.parametrize(("seconds", "said"), [(0.0, 0), (0.6, 1)])
async def test_waiting_ends_with_the_error_of_the_last_try(
    seconds: float, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting the first one decides, as for a command that somebody types."""
    monkeypatch.setattr(cluster, "PAUSES", Pauses())  # other tests have tried there
    with capture_logs() as lines, pytest.raises(BrokerError, match="no broker answers"):
        await ensure_topics(PATIENT.model_copy(update={"wait_seconds": seconds}), partitions=1)
    assert len(lines) == said


async def test_a_long_wait_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is tried: a container may wait for hours."""
    hands, look = Hands(), AsyncMock(side_effect=BrokerError("no broker answers at kafka:9092"))
    sleep = AsyncMock(side_effect=hands.turn)
    monkeypatch.setattr(clients, "asyncio", SimpleNamespace(get_running_loop=lambda: hands, sleep=sleep))
    with capture_logs() as lines, pytest.raises(BrokerError):
        await clients.retry(PATIENT.model_copy(update={"wait_seconds": 200.0}), look)
    assert look.await_count > 40
    assert len(lines) == 4


async def test_a_service_waits_for_topics_that_somebody_else_creates(settings: Settings, topic: TopicFactory) -> None:
    """As in a container that starts beside the one which creates them."""
    settings = settings.model_copy(update={"raw_topics": (topic(1),), "wait_seconds": 30})
    with capture_logs() as lines:
        service = asyncio.create_task(require_topics(settings))
        await until(lambda: lines, service)
        await ensure_topics(settings)
        assert not [problem for problem in await service if problem.severity == "error"]
    assert "is missing" in lines[0]["reason"]


PAUSE_SECONDS = 0.6
"""Longer than several fetches at the end of a log take."""


async def test_nothing_is_fetched_between_two_looks(
    settings: Settings, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = TopicPartition(topic(), 0)
    seen, fetched, asker = list[bytes](), list[int](), list[AIOKafkaConsumer]()
    looked = asyncio.Event()

    async def watched(request: Callable[..., Any], *arguments: Any) -> Any:
        fetched.append(1)
        return await request(*arguments)

    async def ask(client: AIOKafkaConsumer) -> None:
        fetcher: Any = client._fetcher
        if not asker:
            monkeypatch.setattr(fetcher, "_proc_fetch_request", partial(watched, fetcher._proc_fetch_request))
        asker[:] = [client]
        first, end = (await offsets(client, [partition]))[partition]
        records = read_range(client, partition, max(first, len(seen)), end)
        seen.extend([bytes(record.value or b"") async for record in records])
        fetched.append(0)
        looked.set()

    async with producer(settings) as client:
        await client.send_and_wait(partition.topic, b"0", partition=0)
        asking = asyncio.create_task(clients.ask_repeatedly(settings, ask, PAUSE_SECONDS, "no broker"))
        for number in range(1, 4):
            await looked.wait()
            looked.clear()
            await until(asker[0].paused)
            await client.send_and_wait(partition.topic, b"%d" % number, partition=0)
        await looked.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert seen == [b"0", b"1", b"2", b"3"]
    *looks, _ = "".join(map(str, fetched)).split("0")
    assert looks
    assert set(looks) == {"1"}, fetched  # what brought the record


async def test_quiet_looks_grow_apart_until_something_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, sleep = (
        AsyncMock(side_effect=[*[clients.QUIET] * 4, None, clients.QUIET, clients.QUIET, LookupError]),
        AsyncMock(),
    )

    @asynccontextmanager
    async def client(_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(pause=lambda *_: None, assignment=list)

    monkeypatch.setattr(clients, "consumer", client)
    monkeypatch.setattr(clients, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop))
    with pytest.raises(LookupError):
        await clients.ask_repeatedly(Settings(), ask, 1.0, "nothing", longest=3.0)
    assert [call.args for call in sleep.await_args_list] == [(1,), (2,), (3,), (3,), (1,), (2,), (3,)]


async def test_that_no_broker_answers_is_told_elsewhere() -> None:
    """Once for a process, not by all who ask something (`tokenmill.app.broker_contact`)."""
    ask = AsyncMock()
    with capture_logs() as lines:
        asking = asyncio.create_task(clients.ask_repeatedly(PATIENT, ask, 0.01, "no broker"))
        await asyncio.sleep(2 * PAUSE_SECONDS)
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])
    assert lines == []
    ask.assert_not_called()


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
    with server:
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Settings]]:
    """Run a broker with a listener of each kind; return what gives the settings for one."""
    directory, authority = tmp_path_factory.mktemp("advertised"), trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    broker = OpenBroker(directory / "broker", listeners=tuple(KINDS), settings=certified(authority))
    shut, closes, deaf = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
    with shut, closing(closes) as closing_port, deaf:
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
