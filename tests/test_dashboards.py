"""Every query of every dashboard has data: a real Prometheus scrapes all kinds of processes at work."""

import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.conftest import TopicFactory
from tests.faults.alerting import Loops, producing, training
from tests.faults.feeding import Feeder
from tests.faults.serving import Serving
from tests.scraping import ask, free_port
from tests.service import Mirroring, Raw, send, service_settings
from tests.stack.prometheus import DASHBOARDS, PROGRAM, Panel, dashboard_queries, running
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches, Mixture

MAY_BE_EMPTY: Final = {"Time to catch up, by topic"}
"""Where nothing waits, there is nothing to catch up with."""
SECONDS: Final = 120.0
STEPS: Final = ({"name": "regex", "regex_exp": "a fox"}, {"name": "length", "max_words": 60})
PACKING: Final = {"name": "rows", "long": "truncate", "short": "pad"}


def document(rng: random.Random) -> bytes:
    words = " ".join(rng.choice(("one", "two", "three", "a fox", "four")) for _ in range(rng.randrange(2, 75)))
    return b"\xff\xfe\x00" if rng.random() < 0.1 else words.encode()


def scraped(directory: Path, targets: Mapping[str, Mapping[str, int]]) -> Path:
    jobs = []
    for job, of in targets.items():
        static = [{"targets": [f"127.0.0.1:{port}"], "labels": {"service": name}} for name, port in of.items()]
        jobs.append({"job_name": job, "static_configs": static})
    page = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(page))
    return directory


def ranks(settings: Settings, stop: Callable[[], bool]) -> Loops:
    streams = [stream.name for stream in settings.streams()]

    def opened(stream: str) -> Batches:
        return Batches(settings.store, stream, batch_size=1, seed=1, stop=stop)

    mixture = Mixture({name: opened(name) for name in streams}, {streams[0]: 3, streams[1]: 1})
    return {"plain": opened(streams[0]), "mixed": mixture}


@pytest.mark.needs("minutes")
@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs prometheus (Debian: apt install prometheus)")
def test_every_query_of_every_dashboard_has_data(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    began = time.time()
    splits = {"train": 700, "validation": 300}
    settings = service_settings(broker, topic(2), tmp_path, splits=splits, steps=STEPS, packing=PACKING)
    mirror_port = free_port()
    with ExitStack() as stack:
        service = stack.enter_context(Serving(settings, tmp_path))
        stack.enter_context(Feeder(settings, random.Random(1), burst=30, make=document))
        service.wait_until(lambda: all((settings.store / s.name / "eras.jsonl").exists() for s in settings.streams()))
        stack.enter_context(Mirroring(settings, tmp_path / "mirror", port=mirror_port))
        trainers = stack.enter_context(training(partial(ranks, settings), lambda: 0.05))
        sender = stack.enter_context(producing(settings, tmp_path, ["four one two three\n"] * 100_000, 20_000))
        mills = {"mill": service.port, "mirror": mirror_port}
        targets = {"tokenmill": mills, "tokenmill-trainers": trainers, "tokenmill-producers": {"sender": sender}}
        server = stack.enter_context(running(scraped(tmp_path, targets)))
        service.wait_until(lambda: ask(mirror_port, "/metrics").code == 200)
        left: list[Panel] = [panel for panel in dashboard_queries() if panel.title not in MAY_BE_EMPTY]
        while left and time.time() - began < SECONDS:
            send(settings, [Raw(None, 0, key=b"gone")])
            time.sleep(1)
            left = [panel for panel in left if not server.points(panel.expression, began)]
    assert left == []


def test_each_dashboard_is_asked_for() -> None:
    assert {file.stem for file in DASHBOARDS.glob("*.json")} == {"tokenmill", "data", "training"}
    for file in DASHBOARDS.glob("*.json"):
        text = file.read_text()
        known = set(re.findall(r'"name": "(\w+)",\s*"label"', text))
        assert {name for name in re.findall(r"\$(\w+)", text) if not name.startswith("__")} == known
