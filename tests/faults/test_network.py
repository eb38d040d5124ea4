"""Between service and broker: connections that break, sends that fail although they did not, brokers that go."""

import io
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.protocol import produce

from tests.brokers import OpenBroker, pause, resume
from tests.conftest import topics_on
from tests.faults.altering import configure
from tests.faults.feeding import Feeder, flush_all
from tests.faults.oracle import assert_alive_again, judge, read_topic
from tests.faults.proxy import Proxy, Request, unchanged
from tests.faults.serving import Serving, Supervised
from tests.faults.trial import Trial
from tests.scraping import free_port
from tests.secured import MODULES, PASSWORD, USER, TokenEndpoint
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.kafka.cluster import prepare
from tokenmill.app.local.broker import HOST, SETTINGS, Broker
from tokenmill.app.logs import LINES, WINDOW_SECONDS
from tokenmill.app.settings import Settings
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import TopicError

pytestmark = pytest.mark.needs("minutes")

BURST: Final = 3  # documents at once: a backlog would only make every probe wait behind it
GROWTH_BYTES: Final = 256 << 20
"""What four processes may grow by while no broker answers: some queues of 8 MiB, and what Python does not give back."""
PRODUCE: Final = 0
FETCH: Final = 1  # numbers of APIs
COUNT_AT: Final = 57  # where a record batch says how many records it holds (Kafka's record batch format, version 2)
UNKNOWN: Final = -1  # the error code UNKNOWN_SERVER_ERROR, which no client tries again
NOT_ENOUGH_REPLICAS: Final = 19
"""One that clients try again. A single broker never gives it: no topic has fewer replicas than it was made with."""


class Sent(NamedTuple):
    topic: str
    partition: int
    batch: bytes

    @property
    def records(self) -> int:
        return int.from_bytes(self.batch[COUNT_AT : COUNT_AT + 4])


def batches(request: Request) -> Iterator[Sent]:
    """Yield what a produce request sends."""
    kind: Any = getattr(produce, f"ProduceRequest_v{request.version}")
    body = io.BytesIO(request.payload)
    body.seek(8)
    (length,) = struct.unpack(">h", body.read(2))  # the client's name
    body.seek(max(length, 0), io.SEEK_CUR)
    for topic, partitions in kind.SCHEMA.decode(body)[-1]:
        for partition, batch in partitions:
            yield Sent(topic, partition, batch)


def with_error(request: Request, answer: bytes, topic: str, code: int = UNKNOWN) -> bytes:
    """Return an answer that calls every batch for ``topic`` refused, whatever became of it."""
    kind: Any = getattr(produce, f"ProduceResponse_v{request.version}")
    found = kind.decode(io.BytesIO(answer[4:]))
    changed = [
        (name, [(parts[0], code, *parts[2:]) if name == topic else parts for parts in partitions])
        for name, partitions in found.topics
    ]
    encoded: bytes = kind(changed, found.throttle_time_ms).encode()
    return answer[:4] + encoded


def damaged(payload: bytes, topic: str, request: Request) -> bytes:
    """Return a request whose batches for ``topic`` have a byte changed: the broker refuses them by their checksum."""
    for sent in batches(request):
        if sent.topic == topic:
            payload = payload.replace(sent.batch, sent.batch[:-1] + bytes([sent.batch[-1] ^ 1]))
    return payload


@dataclass
class InFlight:
    """Counts the records that each connection has sent to each partition and not heard of."""

    now: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    """By topic, the most that were ever under way to one of its partitions, on one connection."""

    def sent(self, request: Request) -> None:
        for sent in batches(request):
            place = (request.connection, sent.topic, sent.partition)
            self.now[place] += sent.records
            self.most[sent.topic] = max(self.most[sent.topic], self.now[place])

    def answered(self, request: Request) -> None:
        for sent in batches(request):
            self.now[request.connection, sent.topic, sent.partition] -= sent.records


class Network(NamedTuple):
    broker: Broker
    proxy: Proxy

    def settings(self, directory: Path, partitions: int) -> Settings:
        """Return settings for a raw topic of a test's own; they lead straight to the broker."""
        raw_topic = topics_on(self.broker, directory.name)(partitions)
        splits = {"train": 900, "dev": 100}
        return service_settings(self.broker, raw_topic, directory, session_timeout=2.0, splits=splits)


@pytest.fixture(scope="module")
def whole_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Run a broker that tells those who come through the proxy to come through the proxy again."""
    port = free_port()
    with Proxy() as proxy:
        protocols = f"{SETTINGS['listener.security.protocol.map']},PROXIED:PLAINTEXT"
        advertised = f"PLAINTEXT://{HOST}:{port},PROXIED://{proxy.address}"
        broker = OpenBroker(
            tmp_path_factory.mktemp("broker"),
            port=port,
            listeners=("PROXIED",),
            settings={"listener.security.protocol.map": protocols, "advertised.listeners": advertised},
        )
        proxy.target = broker.address("PROXIED")
        with broker:
            yield Network(broker, proxy)


@pytest.fixture
def network(whole_network: Network) -> Iterator[Network]:
    """Leave the network whole, however a test ends."""
    proxy = whole_network.proxy
    proxy.happened.clear()
    yield whole_network
    proxy.delay, proxy.swallowing = 0.0, False
    proxy.on_request = proxy.on_answer = unchanged


@pytest.mark.fault("network-broken")
def test_far_brokers_get_larger_messages(network: Network, tmp_path: Path, trial: Trial) -> None:
    """What waits behind a slow acknowledgement goes as one message; all that is stored and published is right."""
    proxy, settings = network.proxy, network.settings(tmp_path, 1).model_copy(update={"message_bytes": 2048})
    with Serving(settings, tmp_path, through=proxy.address) as service:
        assert_alive_again(service, trial)
        proxy.delay = 0.2
        with Feeder(settings, trial.rng):
            time.sleep(trial.rounds(10, 60))
        proxy.delay = 0.0
        judge(service, trial)
    trial.fired("frames delayed", proxy.happened["frames delayed"])
    published = [len(kept.value or b"") for kept in read_topic(settings, settings.streams()[0].tokens_topic, 0)]
    assert max(published) > 4 * settings.message_bytes


@pytest.mark.fault("network-broken")
@pytest.mark.timeout(1800)
def test_broken_connections_lose_and_repeat_nothing(network: Network, tmp_path: Path, trial: Trial) -> None:
    """Delayed, reset, half open, under load: the service comes back by itself each time, all right at the end."""
    proxy, settings = network.proxy, network.settings(tmp_path, 2)
    with Serving(settings, tmp_path, through=proxy.address) as service:
        assert_alive_again(service, trial)
        with Feeder(settings, trial.rng, burst=BURST):
            for _ in range(trial.rounds(1, 8)):
                proxy.delay = trial.rng.uniform(0.05, 0.3)
                time.sleep(trial.rounds(3, 10))
                proxy.delay = 0.0
                for _ in range(trial.rounds(4, 20)):
                    proxy.reset()
                    time.sleep(trial.rng.uniform(0, 1))
                assert_alive_again(service, trial)
                proxy.swallowing = True
                time.sleep(trial.rounds(4, 12))
                proxy.swallowing = False
                assert_alive_again(service, trial)
        judge(service, trial)
    trial.faults += proxy.happened
    assert len(trial.faults) == 3, trial.faults


@pytest.mark.fault("network-broken")
async def test_client_that_only_looks_for_leaders_leaves_a_silent_connection(network: Network, trial: Trial) -> None:
    """A look that gets no answer ends with its connection: the next one has another, and finds the brokers."""
    proxy = network.proxy
    async with AIOKafkaProducer(bootstrap_servers=proxy.address, request_timeout_ms=500) as client:
        prepare(client)
        assert await client.client.force_metadata_update()  # over the connection that is about to fall silent
        proxy.swallowing = True
        assert not await client.client.force_metadata_update()
        proxy.swallowing = False
        began = time.monotonic()
        assert await client.client.force_metadata_update()
        trial.lived(time.monotonic() - began)
    trial.faults += proxy.happened


@pytest.mark.fault("network-broken")
def test_mill_that_stands_still_is_replaced_and_a_quiet_one_is_not(
    network: Network, tmp_path: Path, trial: Trial
) -> None:
    """Fetches of the raw topic that are never answered: the supervisor ends the mill; quiet streams raise no alarm."""
    limits = WatchLimits(still=6.0, first_backoff=0.5, longest_backoff=1.0)
    settings = network.settings(tmp_path, 1).model_copy(update={"metrics_port": 0})
    name = settings.raw_topics[0].encode()
    wanted = struct.pack(">h", len(name)) + name
    swallowed = 0

    def request(request: Request, payload: bytes) -> bytes | None:
        nonlocal swallowed
        if request.api != FETCH or wanted not in payload:
            return payload
        swallowed += 1
        return None

    with Supervised(settings, tmp_path, limits, through=network.proxy.address) as service:
        assert_alive_again(service, trial)
        time.sleep(2 * limits.still)
        assert not any("ended" in event for event in service.events), "a quiet stream is no fault"
        network.proxy.on_request = request
        service.wait_until(lambda: swallowed > 0)  # the fetch before would have brought the document
        send(settings, [Raw(b"a document that nobody will fetch for a while")])
        service.wait_until(lambda: any("makes no progress at" in event for event in service.events))
        trial.fired("fetches never answered", swallowed)
        network.proxy.on_request = unchanged
        assert_alive_again(service, trial)
        flush_all(settings)
        judge(service, trial)


@dataclass
class Liar:
    """Tells one sender that its message was refused: one that was written, or one that was not."""

    topic: str
    flight: InFlight
    written: bool
    mute: bool  # whether it says nothing at all, and ends the connection
    place: tuple[int, str, int] | None = None  # connection, topic and partition of the one that was lied to
    later: int = 0  # messages that it sent to that partition afterwards
    about: Request | None = None
    done: bool = False

    def request(self, request: Request, payload: bytes) -> bytes:
        """Choose the message, and damage it if it is not to be written."""
        if request.api == PRODUCE:
            self.flight.sent(request)
            for sent in batches(request):
                if self.place == (request.connection, sent.topic, sent.partition):
                    self.later += 1
                elif self.place is None and sent.topic == self.topic:
                    self.place, self.about = (request.connection, sent.topic, sent.partition), request
        return payload if self.written or request is not self.about else damaged(payload, self.topic, request)

    def answer(self, request: Request, payload: bytes) -> bytes | None:
        """Say that it failed."""
        if request.api == PRODUCE:
            self.flight.answered(request)
        if request is not self.about:
            return payload
        self.done = True
        return None if self.mute else with_error(request, payload, self.topic)


@pytest.mark.fault("send-failed")
@pytest.mark.timeout(1800)
def test_failed_sends_leave_neither_hole_nor_difference(network: Network, tmp_path: Path, trial: Trial) -> None:
    """Whether what failed was written or not, its sender sends nothing after it; one message at a time is under way."""
    proxy, settings = network.proxy, network.settings(tmp_path, 1)
    topics = [stream.tokens_topic for stream in settings.streams()]
    flight = InFlight()
    with Serving(settings, tmp_path, through=proxy.address) as service:
        assert_alive_again(service, trial)
        with Feeder(settings, trial.rng, burst=BURST):
            for round_ in range(trial.rounds(3, 30)):
                written, mute = round_ % 3 != 1, round_ % 3 == 2
                liar = Liar(topics[round_ % 2] if trial.full else topics[0], flight, written, mute)
                proxy.on_request, proxy.on_answer = liar.request, liar.answer
                service.wait_until(lambda: liar.done)  # noqa: B023 - called before the next round
                if mute:
                    proxy.reset()
                assert_alive_again(service, trial)
                assert mute or not liar.later, "a message was sent after one that failed"
                kind = "answer lost" if mute else "refused though written" if written else "refused"
                trial.fired(f"message {kind}")
            refuse_for_a_while(service, proxy, topics[0], trial)
        judge(service, trial)
        assert service.log.count("was not acknowledged") >= trial.rounds(2, 20)
    assert {flight.most[topic] for topic in topics} == {1}
    if trial.full:
        refuse_for_good(network, settings, tmp_path, trial)


def refuse_for_a_while(service: Serving, proxy: Proxy, topic: str, trial: Trial) -> None:
    """Refuse all messages as a broker without enough replicas does: workers try again, and nothing is lost."""
    refused = 0

    def answer(request: Request, payload: bytes) -> bytes:
        nonlocal refused
        if request.api != PRODUCE or all(sent.topic != topic for sent in batches(request)):
            return payload
        refused += 1
        return with_error(request, payload, topic, NOT_ENOUGH_REPLICAS)

    held = service.rss()
    proxy.on_request = lambda request, payload: damaged(payload, topic, request) if request.api == PRODUCE else payload
    proxy.on_answer = answer
    service.wait_until(lambda: refused > trial.rounds(10, 100))
    proxy.on_request, proxy.on_answer = unchanged, unchanged
    trial.fired("not enough replicas", refused)
    assert service.rss() - held < GROWTH_BYTES
    assert_alive_again(service, trial)


def refuse_for_good(network: Network, settings: Settings, directory: Path, trial: Trial) -> None:
    """Let the broker take no message of the usual size: the service ends and says which setting; then it goes on."""
    topic = settings.streams()[0].tokens_topic
    with Serving(settings, directory, through=network.proxy.address) as service:
        assert_alive_again(service, trial)
        configure(settings, topic, "max.message.bytes", "200")
        with Feeder(settings, trial.rng, burst=BURST):
            code = service.wait_for_end()
    trial.fired("message too large")
    assert "MessageSizeTooLarge" in service.log
    assert code == TopicError.exit_code
    assert f"topic {topic} takes messages of 200 bytes" in service.log
    trial.held("loud")
    configure(settings, topic, "max.message.bytes", "10000000")
    flush_all(settings)
    with Serving(settings, directory, through=network.proxy.address) as service:
        judge(service, trial)


LOGGERS = 6
"""How many of a process's loggers repeat themselves while no broker answers: four of aiokafka, asyncio, our own."""


@pytest.mark.fault("broker-killed", "broker-paused")
@pytest.mark.timeout(1800)
def test_broker_that_goes_again_and_again_loses_and_repeats_nothing(tmp_path: Path, trial: Trial) -> None:
    """In order, by SIGKILL, by SIGSTOP: nobody but `serve` starts a worker, and every chain lives after each."""
    down = trial.rounds(6, 25)
    with Broker(tmp_path / "broker") as broker:
        raw_topic = topics_on(broker, "restarts")(2)
        splits = {"train": 900, "dev": 100}
        packing = trial.rng.choice(["concat", {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}])
        settings = service_settings(broker, raw_topic, tmp_path, session_timeout=2.0, splits=splits, packing=packing)
        with Serving(settings, tmp_path) as service:
            assert_alive_again(service, trial)
            with Feeder(settings, trial.rng, burst=BURST) as feeder:
                for end in [*[broker.stop] * trial.rounds(0, 1), *[broker.kill] * trial.rounds(1, 5)]:
                    time.sleep(trial.rng.uniform(0.5, 1.5))
                    end()
                    assert not broker.running
                    trial.fired("broker ended in order" if end == broker.stop else "broker SIGKILL")
                    before, held, seconds = service.log.count("\n"), service.rss(), down if end == broker.kill else 1
                    time.sleep(seconds)
                    lines, grown = service.log.count("\n") - before, service.rss() - held
                    trial.held("loud", seconds_without_broker=seconds, lines_without_broker=lines)
                    broker.start()
                    assert_alive_again(service, trial)
                    assert lines < 4 * LOGGERS * LINES * (2 + down / WINDOW_SECONDS), service.log[-8000:]
                    assert grown < GROWTH_BYTES
                sent = feeder.sent
                for _ in range(trial.rounds(1, 12)):
                    pause(broker)
                    time.sleep(trial.rounds(3, 5))  # longer than the session time-out
                    resume(broker)
                    trial.fired("broker SIGSTOP")
                    time.sleep(trial.rounds(1, 5))
                assert_alive_again(service, trial)
                assert feeder.sent > sent
            judge(service, trial)


EXPIRING: Final = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": MODULES["OAUTHBEARER"],
    "connections.max.reauth.ms": "60000",
}
"""With a bound, of any length, brokers end a connection when its token ends (KIP-368)."""


@pytest.mark.fault("token-expires")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("entry", ["tokenmill.app.cli", "tests.app.stock_aiokafka"])
def test_logins_that_end_lose_and_halt_nothing(tmp_path: Path, trial: Trial, entry: str) -> None:
    """What was under way on a connection that ends is sent and read again, with the fast path and without it."""
    protocol = "SASL_PLAINTEXT"
    broker = OpenBroker(tmp_path / "broker", settings=EXPIRING, listeners=(protocol,))
    with broker, TokenEndpoint(seconds=1.0) as endpoint:
        settings = service_settings(broker, topics_on(broker, "logins")(2), tmp_path)
        login = {"bootstrap_servers": broker.address(protocol), "security_protocol": protocol}
        login |= {"sasl_username": USER, "sasl_password": PASSWORD}
        its = settings.model_copy(update=login | endpoint.values | {"wait_seconds": 60.0})  # logins end in starts, too
        with Service(settings, tmp_path, **its.environment()) as service:
            service.entry = entry
            workers = [*service.mill(2), service.segment()]
            assert_alive_again(service, trial)
            with Feeder(settings, trial.rng):
                time.sleep(trial.rounds(8, 110))
                assert_alive_again(service, trial)
            judge(service, trial)
            assert all(worker.running for worker in workers)
            assert all(worker.log.count("Traceback") == 0 for worker in workers)
        trial.fired("new logins", len(endpoint.asked) - len(workers))
        assert trial.faults["new logins"] >= trial.rounds(8, 110)
