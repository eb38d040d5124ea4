"""Between service and broker: connections delayed, reset, left half open; sends that fail although they did not."""

import io
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.protocol import produce

from tests.brokers import OpenBroker
from tests.conftest import topics_on
from tests.faults.alive import assert_alive_again
from tests.faults.configuring import configure
from tests.faults.feeding import Feeder, flush_all
from tests.faults.oracle import judge, read_topic
from tests.faults.proxy import Proxy, Request, unchanged
from tests.faults.serving import Serving
from tests.faults.supervised import Supervised
from tests.faults.trial import Trial
from tests.scraping import free_port
from tests.service import Raw, send, service_settings
from tokenmill.app.kafka.cluster import prepare
from tokenmill.app.local.broker import HOST, SETTINGS, Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import TopicError

pytestmark = pytest.mark.needs("minutes")

PRODUCE: Final = 0
"""The API's number."""
COUNT_AT: Final = 57
"""Where a record batch says how many records it holds (Kafka's record batch format, version 2)."""
UNKNOWN: Final = -1
"""The error code UNKNOWN_SERVER_ERROR, which no client tries again."""
NOT_ENOUGH_REPLICAS: Final = 19
"""One that clients try again. A single broker never gives it: no topic has fewer replicas than it was made with."""


class Sent(NamedTuple):
    """One batch of a produce request."""

    topic: str
    partition: int
    batch: bytes

    @property
    def records(self) -> int:
        """How many records it holds."""
        found: int = struct.unpack_from(">i", self.batch, COUNT_AT)[0]
        return found


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


class InFlight:
    """Counts the batches that each connection has sent to each partition and not heard of."""

    def __init__(self) -> None:
        """Have seen nothing yet."""
        self.most: Counter[str] = Counter()
        """Topic → most records that were ever under way to one of its partitions, on one connection."""
        self._now: Counter[tuple[int, str, int]] = Counter()

    def sent(self, request: Request) -> None:
        """Take note of a produce request."""
        for sent in batches(request):
            place = (request.connection, sent.topic, sent.partition)
            self._now[place] += sent.records
            self.most[sent.topic] = max(self.most[sent.topic], self._now[place])

    def answered(self, request: Request) -> None:
        """Take note of its answer."""
        for sent in batches(request):
            self._now[request.connection, sent.topic, sent.partition] -= sent.records


BURST = 3
"""Documents at once: a backlog would only make every probe wait behind it."""
FETCH = 1
"""The number of the API by which records are read."""
GROWTH_BYTES = 256 << 20
"""What the service's processes may grow by while nothing can be sent."""


class Network(NamedTuple):
    """A broker, and the way to it that can be broken."""

    broker: Broker
    proxy: Proxy

    def settings(self, directory: Path, partitions: int) -> Settings:
        """Return settings for a raw topic of a test's own; they lead straight to the broker."""
        raw_topic = topics_on(self.broker, directory.name)(partitions)
        splits = {"train": 900, "dev": 100}
        return service_settings(self.broker, raw_topic, directory, session_timeout=2.0, splits=splits)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
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


@pytest.fixture(autouse=True)
def mended(network: Network) -> Iterator[None]:
    """Leave the network whole, however a test ends."""
    network.proxy.happened.clear()
    yield
    network.proxy.delay, network.proxy.swallowing = 0.0, False
    network.proxy.on_request = network.proxy.on_answer = unchanged


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


class Liar:
    """Tells one sender that its message was refused: one that was written, or one that was not."""

    def __init__(self, topic: str, *, written: bool, mute: bool = False) -> None:
        """Lie about the next message for ``topic``; ``mute`` says nothing at all, and ends the connection."""
        self.place: tuple[int, str, int] | None = None
        """Connection, topic and partition of the one that was lied to."""
        self.later = 0
        """Messages that it sent to that partition afterwards."""
        self.done = False
        self._topic = topic
        self._written = written
        self._mute = mute
        self._about: Request | None = None

    def request(self, request: Request, payload: bytes) -> bytes | None:
        """Choose the message, and damage it if it is not to be written."""
        if request.api == PRODUCE:
            for sent in batches(request):
                if self.place == (request.connection, sent.topic, sent.partition):
                    self.later += 1
                elif self.place is None and sent.topic == self._topic:
                    self.place, self._about = (request.connection, sent.topic, sent.partition), request
        return payload if self._written or request is not self._about else damaged(payload, self._topic, request)

    def answer(self, request: Request, payload: bytes) -> bytes | None:
        """Say that it failed."""
        if request is not self._about:
            return payload
        self.done = True
        return None if self._mute else with_error(request, payload, self._topic)


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
                liar = Liar(topics[round_ % 2] if trial.full else topics[0], written=written, mute=mute)
                watch(proxy, liar, flight)
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


def watch(proxy: Proxy, liar: Liar, flight: InFlight) -> None:
    """Let the liar lie, and count what is under way."""

    def request(request: Request, payload: bytes) -> bytes | None:
        if request.api == PRODUCE:
            flight.sent(request)
        return liar.request(request, payload)

    def answer(request: Request, payload: bytes) -> bytes | None:
        if request.api == PRODUCE:
            flight.answered(request)
        return liar.answer(request, payload)

    proxy.on_request, proxy.on_answer = request, answer


def refuse_for_a_while(service: Serving, proxy: Proxy, topic: str, trial: Trial) -> None:
    """Refuse all messages as a broker without enough replicas does: workers try again, and nothing is lost."""
    refused = 0

    def request(request: Request, payload: bytes) -> bytes:
        return damaged(payload, topic, request) if request.api == PRODUCE else payload

    def answer(request: Request, payload: bytes) -> bytes:
        nonlocal refused
        if request.api != PRODUCE or all(sent.topic != topic for sent in batches(request)):
            return payload
        refused += 1
        return with_error(request, payload, topic, NOT_ENOUGH_REPLICAS)

    held = service.rss()
    proxy.on_request, proxy.on_answer = request, answer
    service.wait_until(lambda: refused > trial.rounds(10, 100))
    proxy.on_request, proxy.on_answer = unchanged, unchanged
    trial.fired("not enough replicas", refused)
    assert service.rss() - held < GROWTH_BYTES
    assert_alive_again(service, trial)


def refuse_for_good(network: Network, settings: Settings, directory: Path, trial: Trial) -> None:
    """Let the broker take no message of the usual size: the service ends and says which setting; then it goes on."""
    (topic, *_) = [stream.tokens_topic for stream in settings.streams()]
    usual = "10000000"
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
    configure(settings, topic, "max.message.bytes", usual)
    flush_all(settings)
    with Serving(settings, directory, through=network.proxy.address) as service:
        judge(service, trial)
