"""Faults on real services, each of which has to raise its alert and no other.

``python -m tests.faults.test_alert_faults`` (`make alerts`) has them happen; pytest holds it against docs and rules.
Each fault has a service, a producer and a Prometheus of its own; one broker serves most. Prometheus has the project's
configuration and rules; durations of the rules are divided by `FACTOR`, and so are those of the settings that rules
build on. `INJECTED` names the faults as `tests.test_alerts` does, where the others are given as samples alone.
"""

import argparse
import functools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trustme
import yaml
from confluent_kafka import Producer

from tests.brokers import OpenBroker
from tests.commands import Command, command, run
from tests.conftest import topics_on
from tests.faults import alerting
from tests.faults.altering import configure, delete_records
from tests.faults.proxy import Proxy
from tests.faults.serving import Serving
from tests.marked import until
from tests.scraping import ask, free_port
from tests.secured import certified
from tests.service import Mirroring, service_settings
from tests.stack.prometheus import Prometheus
from tests.test_alerts import FAULTS, RELIABILITY, seconds
from tokenmill.app.local.broker import SETTINGS, Broker
from tokenmill.app.settings import Settings
from tokenmill.store.layout import locked

TEXT: Final = (alerting.CONFIGURATION.parent / alerting.RULES).read_text()


def test_the_page_on_reliability_says_which_faults_are_real() -> None:
    """And why each of the others is given as samples alone."""
    rows = re.findall(r"^\| ([^|`]+) \| `TokenMill\w+` \| (yes|no: [^|]+) \|$", RELIABILITY.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [*FAULTS]
    assert {name for name, said in rows if said == "yes"} == INJECTED.keys()


def test_all_durations_of_the_rules_are_divided() -> None:
    """Those of a time that has no unit as well; numbers of other things stay."""
    rules: list[Mapping[str, Any]] = yaml.safe_load(alerting.faster(TEXT, FACTOR))["groups"][0]["rules"]
    found = {rule["alert"]: rule for rule in rules}
    for rule in yaml.safe_load(TEXT)["groups"][0]["rules"]:
        assert found[rule["alert"]].get("for", "0ms") == f"{seconds(rule.get('for', '0s')) * 1000 // FACTOR}ms"
    text = alerting.faster(TEXT, FACTOR)
    assert not re.search(r"\[\d+[smh]\]", text)
    assert "tokenmill_durable_lag_seconds) > 120" in text
    assert "4 * 720) < 0" in text
    assert "- time()) < 1209600" in text


@pytest.mark.parametrize(
    ("alert", "own"), [("TokenMillWorkerDown", 60), ("TokenMillFilterChanged", 900), ("TokenMillNotDurable", 660)]
)
def test_the_times_of_an_alert_are_its_for_and_what_it_looks_back(alert: str, own: float) -> None:
    """Not the hours that it compares with."""
    assert own_seconds(alert) == own / FACTOR


FACTOR: Final = 5
ERA_SECONDS: Final = 60 / FACTOR  # also `carry_seconds`: the default, as much faster
ALLOWED: Final = 60.0  # seconds after an alert's own times within which it fires
BASELINE: Final = 30.0  # seconds of good work before a fault
LONG_BASELINE: Final = 150.0  # before one that is a difference to what was before: more than its shorter range
SECONDS: Final = 240.0  # longest wait for a service to work
DAY: Final = 86_400.0
MOUNT: Final = ("/bin/mount", "-o")


def words(count: int) -> bytes:
    return b"four" + b" word" * (count - 1)


def usual(_number: int) -> bytes:
    return words(12)


@dataclass
class Brokers:
    """One broker, and ways to it: as it is, with certificates, and through networks that may be cut or slow."""

    open: OpenBroker
    authority: trustme.CA
    proxies: Mapping[str, Proxy]

    @classmethod
    def start(cls, directory: Path, stack: ExitStack) -> "Brokers":
        authority, proxies = trustme.CA(), {name: stack.enter_context(Proxy()) for name in ("CUT", "SLOW")}
        broker = OpenBroker(directory, listeners=("SSL", *proxies), settings=certified(authority))
        own = ",".join(f"{name}://{proxy.address}" for name, proxy in proxies.items())
        protocols = ",".join(f"{name}:PLAINTEXT" for name in proxies)
        plain, tls = f"PLAINTEXT://{broker.bootstrap_servers}", f"SSL://{broker.address('SSL')}"
        broker._settings |= {
            "listener.security.protocol.map": f"{SETTINGS['listener.security.protocol.map']},SSL:SSL,{protocols}",
            "advertised.listeners": f"{plain},{tls},{own}",
        }
        for name, proxy in proxies.items():
            proxy.target = broker.address(name)
        stack.enter_context(broker)
        return cls(broker, authority, proxies)


@dataclass
class Scene:
    """What works before a fault, and what a fault has in hand."""

    brokers: Brokers
    broker: Broker
    settings: Settings
    directory: Path
    stack: ExitStack
    over: threading.Event = field(default_factory=threading.Event)
    text: Callable[[int], bytes] = usual  # makes a record, from its number
    burst: int = 2  # records in a tenth of a second
    service: Serving = field(init=False)
    roles: Mapping[str, Command] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=lambda: {"services": {}, "trainers": {}})

    @property
    def stream(self) -> str:
        return self.settings.streams()[0].name

    def again(self, seconds: float, action: Callable[[], None]) -> None:
        def repeat() -> None:
            while not self.over.wait(seconds):
                action()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(self.over.set)

    def produce(self) -> None:
        client = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 20, "log_level": 0})
        sent = iter(range(10**9))

        def send() -> None:
            for number in (next(sent) for _ in range(self.burst)):
                client.produce(self.settings.raw_topics[0], self.text(number), partition=number % 2)
            client.poll(0)

        self.again(0.1, send)

    def serve(self) -> None:
        self.service = self.stack.enter_context(Serving(self.settings, self.directory))

    def role(self, role: str, **values: object) -> Command:
        port = self.ports["services"][role] = free_port()
        settings = self.settings.model_copy(update={"metrics_port": port, **values})
        process = command([role], self.directory / f"{role}.log", settings.environment())
        self.stack.callback(process.kill)
        return process

    def mirror(self, **values: object) -> Mirroring:
        port = self.ports["services"]["mirror"] = free_port()
        settings = self.settings.model_copy(update=values)
        return self.stack.enter_context(Mirroring(settings, self.directory / "mirror", port=port))

    def pid(self, role: str) -> int:
        """Return a worker's process, once there is one."""
        deadline = time.monotonic() + SECONDS
        while not (found := [pid for pid, its in self.service.pids.items() if its == role]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return random.choice(found)

    def kill(self, role: str, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid(role), number)


Fault = Callable[[Scene], Iterator[float]]  # prepares, yields how long all is well, and does it


class Injected(NamedTuple):
    """A fault, and the service to which it happens."""

    fault: Fault
    settings: Mapping[str, Any]
    prepare: Callable[[Scene], object]  # what runs the service
    static: str | None  # whose port the configuration names where the service is no `serve`


INJECTED: Final[dict[str, Injected]] = {}  # by the name of `tests.test_alerts.FAULTS`


def injected(
    name: str, prepare: Callable[[Scene], object] = Scene.serve, static: str | None = None, **settings: Any
) -> Callable[[Fault], Fault]:
    def note(fault: Fault) -> Fault:
        INJECTED[name] = Injected(fault, settings, prepare, static)
        return fault

    return note


def on_a_disk(scene: Scene) -> None:
    """Run the service with a disk of its own, of 8 GiB that nothing has to hold."""
    store = scene.settings.store
    store.mkdir()
    subprocess.run([*MOUNT, "size=8G", "-t", "tmpfs", "tmpfs", str(store)], check=True)
    scene.stack.callback(subprocess.run, ["/bin/umount", "--lazy", str(store)], check=True)
    scene.serve()


def with_certificates(scene: Scene) -> None:
    """Run the service with a certificate that ends in ten days."""
    own = scene.brokers.authority.issue_cert("client", not_after=datetime.now(UTC) + timedelta(days=10))
    values: dict[str, object] = {"security_protocol": "SSL", "bootstrap_servers": scene.brokers.open.address("SSL")}
    blobs = {"ssl_cafile": scene.brokers.authority.cert_pem, "ssl_certfile": own.private_key_and_cert_chain_pem}
    for name, blob in blobs.items():
        values[name] = scene.directory / f"{name}.pem"
        blob.write_to_path(str(values[name]))
    scene.settings = scene.settings.model_copy(update=values)
    scene.serve()


def alone(scene: Scene) -> None:
    """Run each role in a process of its own."""
    scene.roles = {role: scene.role(role) for role in ("mill", "segment")}


@injected("a process does not answer")
def _silent_process(scene: Scene) -> Iterator[float]:
    mill = scene.role("mill")
    yield BASELINE
    mill.send_signal(signal.SIGSTOP)


@injected("a mirror does not answer")
def _silent_mirror(scene: Scene) -> Iterator[float]:
    mirror = scene.mirror()
    yield BASELINE
    mirror.process.send_signal(signal.SIGSTOP)


@injected("no broker answers")
def _no_broker(scene: Scene) -> Iterator[float]:
    yield BASELINE
    scene.broker.kill()


@injected("no broker answers one process")
def _cut_off(scene: Scene) -> Iterator[float]:
    scene.role("mill", bootstrap_servers=scene.brokers.proxies["CUT"].address)
    yield BASELINE
    scene.brokers.proxies["CUT"].swallowing = True


def _gone(scene: Scene, role: str) -> Iterator[float]:
    yield 2 * BASELINE
    scene.roles[role].kill()
    del scene.ports["services"][role]
    alerting.name_targets(scene.directory, scene.ports)


injected("no mill", prepare=alone, static="segment")(functools.partial(_gone, role="mill"))
injected("no segment worker", prepare=alone, static="mill")(functools.partial(_gone, role="segment"))


@injected("a worker ended", workers=2)
def _hangs_in_its_start(scene: Scene) -> Iterator[float]:
    yield BASELINE
    before = set(scene.service.pids)
    scene.kill("mill")

    def hold() -> None:
        for pid in set(scene.service.pids) - before:
            os.kill(pid, signal.SIGSTOP)

    scene.again(0.1, hold)


@injected("a partition halted")
def _retention(scene: Scene) -> Iterator[float]:
    yield BASELINE
    scene.kill("mill", signal.SIGSTOP)
    time.sleep(2)
    delete_records(scene.settings, scene.settings.raw_topics[0], 0, -1)
    scene.kill("mill")


@injected("the store's files are damaged", segment_blocks=1 << 15)
def _damage(scene: Scene) -> Iterator[float]:
    yield BASELINE
    (tokens,) = (scene.settings.store / scene.stream / "0").glob("*.bin")
    scene.kill("segment")
    os.truncate(tokens, 4096)


@injected("a partition waits")
def _lock(scene: Scene) -> Iterator[float]:
    yield BASELINE
    scene.kill("segment")
    scene.stack.enter_context(locked(scene.settings.store / scene.stream / "0"))


@injected("text comes faster than it is taken", function="tests.faults.harmful_step:slow")
def _much_text(scene: Scene) -> Iterator[float]:
    # Eighty a second come and thirty are milled: the lag grows by 0.6 s a second, so that nothing waits too long to be
    # durable before the alert. The texts are long, for a mill hears of new ones when it has read some megabytes.
    scene.burst, scene.text = 0, lambda _number: words(5000)
    yield BASELINE
    scene.burst = 8


@injected("text is not durable", carry_seconds=DAY, sequence_length=1 << 20)
@injected("no era ever", era_max_seconds=DAY)
@injected("a certificate ends in ten days", prepare=with_certificates)
def _by_settings(scene: Scene) -> Iterator[float]:
    yield 0.0


@injected("eras stand still")
def _no_more_eras(scene: Scene) -> Iterator[float]:
    yield BASELINE
    configure(scene.settings, scene.settings.streams()[0].control_topic, "max.message.bytes", "1")


@injected("much is no document")
def _no_documents(scene: Scene) -> Iterator[float]:
    yield BASELINE
    scene.text = lambda number: b"\xff\xfe" if number % 10 == 0 else words(12)


def _other_texts(before: Callable[[int], bytes], then: Callable[[int], bytes]) -> Fault:
    def fault(scene: Scene) -> Iterator[float]:
        scene.text = before
        yield LONG_BASELINE
        scene.text = then

    return fault


LENGTH: Final = {"name": "length", "min_words": 5}
injected("a filter drops much more", steps=(LENGTH,))(
    _other_texts(usual, lambda number: words(3 if number % 2 else 12))
)
injected("a reason takes another one's place", steps=({**LENGTH, "max_words": 20},))(
    _other_texts(lambda number: words(3 if number % 5 < 2 else 12), lambda number: words(30 if number % 5 < 2 else 12))
)
injected("documents become longer")(_other_texts(usual, lambda _: words(80)))
injected("documents become shorter")(_other_texts(usual, lambda _: words(4)))


@injected("a source falls silent")
def _silence(scene: Scene) -> Iterator[float]:
    yield BASELINE
    scene.burst = 0


@injected("a mirror gets nothing")
def _slow_network(scene: Scene) -> Iterator[float]:
    proxy = scene.brokers.proxies["SLOW"]
    scene.mirror(bootstrap_servers=proxy.address)
    yield BASELINE
    # Kafka's number of Fetch
    proxy.on_answer = lambda request, payload: None if request.api == 1 else payload


@injected("a trainer waits")
def _fast_trainer(scene: Scene) -> Iterator[float]:
    scene.service.wait_until((scene.settings.store / scene.stream / "stream.json").exists)
    seconds = [0.2]
    scene.ports["trainers"] |= scene.stack.enter_context(
        alerting.training(functools.partial(alerting.rank, scene.settings, 1), lambda: seconds[0])
    )
    yield BASELINE
    seconds[0] = 0.0


@injected("the disk is full", prepare=on_a_disk)
def _little_room(scene: Scene) -> Iterator[float]:
    yield BASELINE
    subprocess.run([*MOUNT, "remount,size=4G", str(scene.settings.store)], check=True)


@injected("the disk will be full", prepare=on_a_disk)
def _ever_less_room(scene: Scene) -> Iterator[float]:
    yield BASELINE
    file = scene.stack.enter_context((scene.settings.store / "ballast").open("ab", buffering=0))

    def write() -> None:
        if file.tell() < 2 << 30:
            file.write(bytes(3 << 20))

    scene.again(0.5, write)


@functools.cache
def rules() -> Mapping[str, Mapping[str, Any]]:
    """Return the rules by name, not yet faster."""
    (group,) = yaml.safe_load((alerting.CONFIGURATION.parent / alerting.RULES).read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def own_seconds(alert: str) -> float:
    """Return the times of an alert, faster: `for`, and the longest time that it looks at, but for hours.

    Ranges of an hour and more say what was before. A lag must have been there for as long as its limit says.
    """
    rule = rules()[alert]
    looks = [
        int(count) * alerting.UNITS[unit] for count, unit in alerting.DURATION.findall(rule["expr"]) if unit != "h"
    ]
    looks += [int(limit) for what, limit in alerting.LIMIT.findall(rule["expr"]) if what.startswith("lag")]
    ((count, unit),) = alerting.DURATION.findall(f" {rule.get('for', '0s')}")
    return (max(looks, default=0) + int(count) * alerting.UNITS[unit]) / FACTOR


def fired(server: Prometheus, since: float) -> dict[str, float]:
    """Return who has fired since then, and when first."""
    query = 'ALERTS{alertstate="firing"}'
    series = server.ask("query_range", query=query, start=since, end=time.time(), step=1)["result"]
    found: dict[str, float] = {}
    for each in series:
        name, first = each["metric"]["alertname"], float(each["values"][0][0])
        found[name] = min(first, found.get(name, first))
    return found


def play(name: str, brokers: Brokers, directory: Path) -> tuple[str, bool]:
    """Let a fault happen; return what came of it, in words, and whether that is right."""
    directory.mkdir()
    case, alert = INJECTED[name], FAULTS[name].alert
    own = own_seconds(alert)
    with ExitStack() as stack:
        broker: Broker = brokers.open
        if alert == "TokenMillNoBroker" and case.fault is _no_broker:
            broker = stack.enter_context(Broker(directory / "broker"))
        topic = topics_on(broker, "alert")(2)
        values: dict[str, Any] = {"splits": {"train": 1000}, "workers": 1}
        values |= {"era_max_seconds": ERA_SECONDS, "carry_seconds": ERA_SECONDS}
        settings = service_settings(broker, topic, directory, **{**values, **case.settings})
        scene = Scene(brokers, broker, settings, directory, stack)
        scene.produce()
        case.prepare(scene)
        act = case.fault(scene)
        well = next(act)
        static = scene.ports["services"].pop(case.static) if case.static else scene.service.port
        ports = (static, *scene.ports["services"].values())
        assert until(lambda: all(ask(port, "/readyz").code == 200 for port in ports), SECONDS)
        server = stack.enter_context(alerting.watching(directory, static, scene.ports, FACTOR))
        began = time.time()
        time.sleep(well)
        broken = time.time()
        next(act, None)
        alerting.say(f"{name}: now")
        while time.time() < broken + own + 2 * ALLOWED and alert not in fired(server, began):
            time.sleep(0.5)
        time.sleep(20.0)  # others may be behind the alert
        found = fired(server, began)
    if alert not in found:
        return f"{name}: {alert} does not fire, but {sorted(found)}", False
    late = found.pop(alert) - broken - own
    said = f"{name}: {alert} fires {late:+.1f} s from its time of {own:.0f} s" + (f", and {found}" if found else "")
    return said, late <= ALLOWED and not found


def main() -> int:
    """Let all faults happen, or those that the command line names; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description="Break real services, and look for alerts.")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("fault", nargs="*", default=[*INJECTED])
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="tokenmill-alerts-"))
    alerting.say(f"{len(arguments.fault)} faults; logs, metrics and stores in {directory}")
    with ExitStack() as stack:
        brokers = Brokers.start(directory / "broker", stack)
        run(["--version"], directory / "version.log", {})  # so that what workers are forks of is there before all that
        pool = stack.enter_context(ThreadPoolExecutor(arguments.at_once))

        def one(numbered: tuple[int, str]) -> bool:
            number, name = numbered
            try:
                said, right = play(name, brokers, directory / str(number))
            except Exception as error:  # noqa: BLE001 - the others go on
                said, right = f"{name}: {error!r}", False
            alerting.say(f"{'ok   ' if right else 'WRONG'} {said}")
            return right

        wrong = [*pool.map(one, enumerate(arguments.fault))].count(False)
    alerting.say(f"{wrong} are wrong" if wrong else "ok: each has raised its alert, and no other")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
