"""A Prometheus with the project's own configuration and rules beside real services, and a soak that raises no alert.

``python -m tests.faults.alerting --minutes 120``: a service with a filter and a packing, a mirror, a producer at a
steady rate and a training loop, all of them scraped. In the end Prometheus is asked for all alerts of the run.
"""

import argparse
import itertools
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from tests.commands import command
from tests.conftest import topics_on
from tests.faults.serving import Serving
from tests.scraping import free_port
from tests.service import Mirroring, in_own_loop
from tests.stack.engine import ROOT
from tests.stack.prometheus import Prometheus, running
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches, Mixture
from tokenmill.consumers.prometheus import BatchesCollector, serve_metrics

CONFIGURATION: Final = ROOT / "deploy" / "prometheus-serve.yml"
RULES: Final = "helm/tokenmill/files/alerts.yml"  # beside the configuration, which names it so
SERVICE: Final = "127.0.0.1:9464"  # where the configuration expects it; here another port is free
DURATION: Final = re.compile(r"(?<=[\[ ])(\d+)([smh])\b")
LIMIT: Final = re.compile(r"(lag_seconds\S*\)? > |4 \* )(\d+)")
"""Limits that are seconds as well: of a lag, and how far ahead a disk is looked at."""
UNITS: Final = {"s": 1, "m": 60, "h": 3600}

Targets = Mapping[str, Mapping[str, int]]
"""Ports by service, of each of `targets/services.yml`, `trainers.yml` and `producers.yml`."""


def faster(text: str, factor: int) -> str:
    """Return rules with each duration divided."""
    text = LIMIT.sub(lambda found: f"{found[1]}{int(found[2]) // factor}", text)
    return DURATION.sub(lambda found: f"{int(found[1]) * UNITS[found[2]] * 1000 // factor}ms", text)


def name_targets(directory: Path, targets: Targets) -> None:
    """Say what there is to scrape, now or anew: Prometheus looks at these files."""
    for kind, services in targets.items():
        rows = [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in services.items()]
        new = directory / "targets" / f"{kind}.new"
        new.write_text(yaml.safe_dump(rows))
        new.rename(new.with_suffix(".yml"))


@contextmanager
def watching(directory: Path, service: int, targets: Targets, factor: int = 1) -> Iterator[Prometheus]:
    """Run Prometheus as `deploy/prometheus-serve.yml` has it, durations of rules divided by ``factor``."""
    (directory / "targets").mkdir(parents=True)
    (directory / RULES).parent.mkdir(parents=True)
    name_targets(directory, targets)
    configuration = CONFIGURATION.read_text()
    assert SERVICE in configuration
    (directory / "prometheus.yml").write_text(configuration.replace(SERVICE, f"127.0.0.1:{service}"))
    (directory / RULES).write_text(faster((CONFIGURATION.parent / RULES).read_text(), factor))
    with running(directory) as server:
        yield server


Loops = Mapping[str, Batches | Mixture]  # by the name of the rank


@contextmanager
def training(opened: Callable[[Callable[[], bool]], Loops], seconds: Callable[[], float]) -> Iterator[dict[str, int]]:
    """Train on what grows, with so much time for each step; yield the ports of the ranks' metrics.

    ``opened`` opens the loops, with what tells them to stop.
    """
    ends = threading.Event()
    loops = opened(ends.is_set)

    def train(loop: Batches | Mixture) -> None:
        for _ in loop:
            ends.wait(seconds())

    with ExitStack() as stack:
        ports = {}
        for rank, (name, loop) in enumerate(loops.items()):
            thread = threading.Thread(target=train, args=[loop])
            thread.start()
            stack.callback(thread.join)
            stack.callback(ends.set)  # before it is waited for, also where the next one cannot be started
            registry = CollectorRegistry()
            registry.register(BatchesCollector(loop, rank=rank))
            server = serve_metrics(0, registry=registry)
            stack.callback(server.stop)
            ports[name] = server.port
        yield ports


RATE: Final = 4_000  # bytes of text a second: an era in a minute, as the settings have it, of some 200 blocks
STEP_SECONDS: Final = 4.0  # half of what comes is read, so the trainer never waits for long
STEPS: Final = ({"name": "length", "min_words": 20, "max_words": 400},)  # leaves out a few of a hundred documents


def text(rng: random.Random) -> str:
    words = ("a", "mill", "grinds", "whatever", "the", "river", "brings")
    return " ".join(rng.choices(words, k=rng.randrange(10, 200)))


def texts(seconds: float) -> Iterator[str]:
    rng = random.Random(1)
    some = "".join(f"{text(rng)}\n" for _ in range(5000))
    return itertools.repeat(some, int(1.1 * seconds * RATE / len(some)) + 1)


@contextmanager
def producing(settings: Settings, directory: Path, lines: Iterable[str], rate: int) -> Iterator[int]:
    port, file = free_port(), directory / "sent.txt"
    with file.open("w") as written:
        written.writelines(lines)
    how = [f"--rate={rate}", f"--metrics-port={port}", f"--bootstrap-servers={settings.bootstrap_servers}"]
    words = ["produce", settings.raw_topics[0], str(file), "--lines", "--no-resume", *how]
    process = command(words, directory / "produce.log", {}, directory)
    try:
        yield port
        assert process.poll() is None, process.said
    finally:
        process.kill()


def rank(settings: Settings, batch_size: int, stop: Callable[[], bool]) -> Loops:
    stream = settings.streams()[0].name
    return {"trainer": Batches(settings.store, stream, batch_size=batch_size, seed=1, stop=stop)}


def alerts(server: Prometheus, since: float, state: str) -> list[str]:
    """Return who has been in a state since then, with labels, the first moment and the last, in seconds after that."""
    query = f'ALERTS{{alertstate="{state}"}}'
    found = server.ask("query_range", query=query, start=since, end=time.time(), step=5)["result"]
    rows = []
    for series in found:
        labels = {name: value for name, value in series["metric"].items() if name not in {"__name__", "alertstate"}}
        first, last = (series["values"][n][0] - since for n in (0, -1))
        rows.append(f"{labels.pop('alertname')} {labels} from {first:.0f} s to {last:.0f} s")
    return rows


def soak(directory: Path, minutes: float) -> list[str]:
    """Run all that for so long; print what was pending, and return what fired, or was not as it should be."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(directory / "broker"))
        where: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "store": directory / "store"}
        how: dict[str, Any] = {"tokenizer": "bytes", "packing": "fit", "steps": STEPS, "workers": 1}
        settings = Settings(**where, **how, raw_topics=(topics_on(broker, "soak")(2),))
        in_own_loop(lambda: ensure_topics(settings))
        service = stack.enter_context(Serving(settings, directory))
        stream = settings.streams()[0].name
        service.wait_until((settings.store / stream / "stream.json").exists)
        sender = stack.enter_context(producing(settings, directory, texts(60 * minutes + 300), RATE))
        mirror_port = free_port()
        stack.enter_context(Mirroring(settings, directory / "mirror", port=mirror_port))
        trainer = stack.enter_context(training(partial(rank, settings, 8), lambda: STEP_SECONDS))
        ports = {"services": {"mirror": mirror_port}, "trainers": trainer, "producers": {"sender": sender}}
        server = stack.enter_context(watching(directory, service.port, ports))
        began = time.time()
        say(f"Prometheus at {server.url}; ends in {minutes:g} minutes")
        while (left := began + 60 * minutes - time.time()) > 0:
            time.sleep(min(300.0, left))
            say(f"{(time.time() - began) / 60:.0f} minutes; firing: {alerts(server, began, 'firing')}")
        return judged(server, began)


FIGURES: Final = {
    "processes that answer": "count(up == 1)",
    "documents milled": "sum(tokenmill_records_consumed_total)",
    "documents filtered": 'sum(tokenmill_step_documents_total{result="filtered"})',
    "blocks stored": 'sum(tokenmill_blocks_total{sink="segment"})',
    "eras stored": 'max(tokenmill_store_eras{worker="segment"})',
    "eras mirrored": 'max(tokenmill_store_eras{worker="mirror"})',
    "samples trained on": "sum(tokenmill_trainer_samples_total)",
    "cores that the service takes, per cent": "100 * sum(rate(process_cpu_seconds_total[30m]))",
}


def judged(server: Prometheus, began: float) -> list[str]:
    """Say what there was, and return what is wrong."""
    wrong = [f"fired: {alert}" for alert in alerts(server, began, "firing")]
    for name, query in FIGURES.items():
        value = server.value(query)
        say(f"{name}: {value:,.0f}")
        wrong += [] if value else [f"none: {name}"]
    for alert in alerts(server, began, "pending"):
        say(f"pending: {alert}")
    rules: list[dict[str, Any]] = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    return wrong + [f"not evaluated: {rule['name']}" for rule in rules if rule["health"] != "ok"]


def say(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, flush=True)  # noqa: T201 - what this program is for


def main(arguments: Sequence[str]) -> int:
    """Run for the time that the command line gives; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description="Run a service under load, and look for alerts.")
    parser.add_argument("--minutes", type=float, default=120.0)
    minutes = parser.parse_args(arguments).minutes
    directory = Path(tempfile.mkdtemp(prefix="tokenmill-alerts-"))
    say(f"{minutes:g} minutes; logs, metrics and stores in {directory}")
    wrong = soak(directory, minutes)
    for line in wrong:
        say(f"WRONG {line}")
    say("FAILED" if wrong else "ok: no alert has fired")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
