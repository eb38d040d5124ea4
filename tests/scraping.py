"""A scraper: asks a process for its pages as Prometheus and a container's health check do."""

import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Key = tuple[str, tuple[tuple[str, str], ...]]


class Answer(NamedTuple):
    code: int
    text: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, path: str) -> Answer:
    """Return the answer of 127.0.0.1, whatever its code; code 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode())
    except urllib.error.URLError:
        return Answer(0, "")


def scrape(port: int) -> dict[Key, float]:
    answer = ask(port, "/metrics")
    return parse(answer.text) if answer.code == 200 else {}


def page_of(*collectors: Collector) -> dict[Key, float]:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return parse(generate_latest(registry).decode())


def parse(page: str) -> dict[Key, float]:
    """Return the samples of a page; one that stands there twice is an error."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def total(samples: Mapping[Key, float], name: str, **labels: str) -> float:
    """Return the sum of the samples of a name that have these labels among theirs."""
    return sum(value for (n, has), value in samples.items() if n == name and labels.items() <= dict(has).items())


def rising(samples: Mapping[Key, float]) -> dict[Key, float]:
    return {key: value for key, value in samples.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}
