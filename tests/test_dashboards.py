"""Every query of every dashboard has data: a real Prometheus scrapes all kinds of processes at work."""

import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.serving import Serving
from tests.mirrors import Mirroring
from tests.scraping import ask, free_port
from tests.service import Raw, send, service_settings
from tests.stack.prometheus import DASHBOARDS, Panel, Prometheus, dashboard_queries
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches, Mixture
from tokenmill.consumers.prometheus import BatchesCollector, serve_metrics

PROMETHEUS: Final = shutil.which("prometheus")
MAY_BE_EMPTY: Final = {"Time to catch up, by topic"}
"""Where nothing waits, there is nothing to catch up with."""
SECONDS: Final = 120.0
"""Longest wait for all of them, which takes some 25."""
STEPS: Final = ({"name": "regex", "regex_exp": "a fox"}, {"name": "length", "max_words": 60})
PACKING: Final = {"name": "rows", "long": "truncate", "short": "pad"}
"""Puts padding into blocks, and leaves tokens out."""


def document(rng: random.Random) -> bytes:
    """Return a text: most pass, some are filtered out by either step, and some are no text at all."""
    words = " ".join(rng.choice(("one", "two", "three", "a fox", "four")) for _ in range(rng.randrange(2, 75)))
    return b"\xff\xfe\x00" if rng.random() < 0.1 else words.encode()


@contextmanager
def prometheus(directory: Path, targets: dict[str, dict[str, int]]) -> Iterator[Prometheus]:
    """Run a server that scrapes these ports of 127.0.0.1 every second: by job and service."""
    jobs = [
        {
            "job_name": job,
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in of.items()
            ],
        }
        for job, of in targets.items()
    ]
    (directory / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
    )
    port, log = free_port(), (directory / "prometheus.log").open("wb")
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": f"127.0.0.1:{port}"}
    command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in options.items())]
    process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()
        log.close()


@contextmanager
def training(settings: Settings) -> Iterator[dict[str, int]]:
    """Train on the store: on a stream, and on a mixture of all; yield the ports of both ranks' metrics."""
    ends = threading.Event()
    streams = [stream.name for stream in settings.streams()]

    def opened(stream: str) -> Batches:
        return Batches(settings.store, stream, batch_size=1, seed=1, stop=ends.is_set)

    def train(loop: Any) -> None:
        for _ in loop:
            ends.wait(0.05)

    loops = {
        "plain": opened(streams[0]),
        "mixed": Mixture({name: opened(name) for name in streams}, {streams[0]: 3, streams[1]: 1}),
    }
    servers, threads = {}, [threading.Thread(target=train, args=[loop]) for loop in loops.values()]
    for rank, (name, loop) in enumerate(loops.items()):
        registry = CollectorRegistry()
        registry.register(BatchesCollector(loop, rank=rank))
        servers[name] = serve_metrics(0, registry=registry)
    for thread in threads:
        thread.start()
    try:
        yield {name: server.port for name, server in servers.items()}
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for server in servers.values():
            server.stop()


@contextmanager
def producing(settings: Settings, directory: Path) -> Iterator[int]:
    """Send slowly, as people do; yield the port of the run's metrics."""
    port, file = free_port(), directory / "sent.txt"
    file.write_text("four one two three\n" * 100_000)
    address = f"--bootstrap-servers={settings.bootstrap_servers}"
    how = ["--lines", "--rate=20kB", f"--metrics-port={port}", address, "--no-resume"]
    command = [sys.executable, "-m", "tokenmill.app.cli", "produce", settings.raw_topics[0], str(file), *how]
    with (directory / "produce.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.mark.needs("minutes")
@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus (Debian: apt install prometheus)")
def test_every_query_of_every_dashboard_has_data(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """None asks for what is never told, nor divides what has no labels in common."""
    began = time.time()
    splits = {"train": 700, "validation": 300}
    settings = service_settings(broker, topic(2), tmp_path, splits=splits, steps=STEPS, packing=PACKING)
    mirror_port = free_port()
    with ExitStack() as stack:
        service = stack.enter_context(Serving(settings, tmp_path))
        stack.enter_context(Feeder(settings, random.Random(1), burst=30, make=document))
        service.wait_until(lambda: all((settings.store / s.name / "eras.jsonl").exists() for s in settings.streams()))
        stack.enter_context(Mirroring(settings, tmp_path / "mirror", port=mirror_port))
        ranks = stack.enter_context(training(settings))
        sender = {"sender": stack.enter_context(producing(settings, tmp_path))}
        mills = {"mill": service.port, "mirror": mirror_port}
        targets = {"tokenmill": mills, "tokenmill-trainers": ranks, "tokenmill-producers": sender}
        server = stack.enter_context(prometheus(tmp_path, targets))
        service.wait_until(lambda: ask(mirror_port, "/metrics").code == 200)
        left: list[Panel] = [panel for panel in dashboard_queries() if panel.title not in MAY_BE_EMPTY]
        while left and time.time() - began < SECONDS:
            send(settings, [Raw(None, 0, key=b"gone")])
            time.sleep(1)
            with suppress(OSError):  # it has just been started
                left = [panel for panel in left if not server.points(panel.expression, began)]
    assert left == []


def test_each_dashboard_is_asked_for() -> None:
    """The queries above are those of all files, and a panel's variables are those of its dashboard."""
    assert {file.stem for file in DASHBOARDS.glob("*.json")} == {"tokenmill", "data", "training"}
    for file in DASHBOARDS.glob("*.json"):
        text = file.read_text()
        known = set(re.findall(r'"name": "(\w+)",\s*"label"', text))
        assert {name for name in re.findall(r"\$(\w+)", text) if not name.startswith("__")} == known
