"""A run's metrics as Prometheus sees them."""

import socket
import threading
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from docs.generators.trainer_metrics_page import page
from tests.consumers.mixtures import open_mixture, stores_of
from tests.consumers.scenes import era_store, open_batches
from tests.scraping import scrape, total
from tests.store.chains import STREAM
from tokenmill.consumers.prometheus import BatchesCollector, serve_metrics

PAGE = Path(__file__).parents[2] / "docs" / "trainer_metrics.md"


def test_what_is_scraped_is_what_the_object_says(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    batches, other = (open_batches(era_store(tmp_path / name)) for name in ("a", "b"))
    registry.register(BatchesCollector(batches, rank="0"))
    CollectorRegistry().register(BatchesCollector(other))
    for _ in islice(batches, 3):
        pass
    labels = {"stream": STREAM, "rank": "0"}
    for name, value in (
        ("tokens_total", 24),
        ("batches_total", 3),
        ("bytes_total", 60),
        ("wait_seconds_total", batches.metrics.wait_seconds),
        ("step", 3),
        ("behind_blocks", 34),
        ("behind_eras", 4),
    ):
        assert registry.get_sample_value(f"tokenmill_trainer_{name}", labels) == value


def test_each_stream_of_a_mixture_has_numbers(tmp_path: Path) -> None:
    mixture = open_mixture(stores_of(tmp_path, {"code": 3, "web": 3}), {"web": 3, "code": 1})
    registry = CollectorRegistry()
    registry.register(BatchesCollector(mixture))
    for _ in islice(mixture, 5):
        pass
    labels = {"stream": "code+web", "part": "web"}
    for name, value in (("share", 0.75), ("wanted", 7.5), ("delivered", 8), ("passes", 0), ("newest_seconds", 0)):
        assert registry.get_sample_value(f"tokenmill_trainer_mixture_{name}", labels) == value
    assert registry.get_sample_value("tokenmill_trainer_behind_eras", {"stream": "code+web"}) == 5  # one of web is done


def test_a_run_is_served_by_a_server_that_nobody_can_fill(tmp_path: Path) -> None:
    """Its numbers come over HTTP; half-open requests start no threads in the training process."""
    registry = CollectorRegistry()
    registry.register(BatchesCollector(open_batches(era_store(tmp_path)), rank="0"))
    server = serve_metrics(0, registry=registry)
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert total(scrape(server.port), "tokenmill_trainer_behind_eras", rank="0") == 5
        assert threading.active_count() <= before  # another test's may end meanwhile
    server.stop()


def test_the_page_is_up_to_date_and_names_all(tmp_path: Path) -> None:
    """``make docs`` writes it."""
    assert PAGE.read_text() == page()
    registry = CollectorRegistry()
    registry.register(BatchesCollector(open_batches(era_store(tmp_path))))
    shown = generate_latest(registry).decode()
    assert all(line.split()[2] in page() for line in shown.splitlines() if line.startswith("# TYPE"))
