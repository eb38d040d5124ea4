"""What a training loop got, how far it is behind, and a run's metrics as Prometheus sees them."""

import socket
import threading
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from docs.generators.trainer_metrics_page import page
from tests.consumers.mixtures import open_mixture, stores_of
from tests.consumers.scenes import BLOCKS, ERAS, OPEN_ERAS, era_store, grow, open_batches
from tests.scraping import scrape, total
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, Behind, Metrics, Mixture
from tokenmill.consumers.prometheus import BatchesCollector, serve_metrics
from tokenmill.store import Store


def test_what_was_delivered_is_counted(store: Store) -> None:
    batches = open_batches(store, batch_size=3, sequence_length=2, world_size=2)
    assert batches.metrics == Metrics()
    list(islice(batches, 2))
    earlier = batches.metrics
    list(islice(batches, 3))
    whole, later = batches.metrics, batches.metrics.since(earlier)
    assert (whole.batches, whole.samples, whole.tokens, whole.bytes) == (5, 15, 30, 15 * 3 * 2)
    assert (later.batches, later.samples, later.tokens, later.bytes) == (3, 9, 18, 9 * 3 * 2)


def test_time_is_the_models_or_the_datas(store: Store) -> None:
    batches = open_batches(store)
    list(batches)
    found = batches.metrics
    assert found.work_seconds > 0
    assert found.wait_seconds > 0
    assert found.wait_ratio == found.wait_seconds / (found.work_seconds + found.wait_seconds)
    assert found.tokens_per_second == found.tokens / (found.work_seconds + found.wait_seconds)
    assert Metrics(work_seconds=3, wait_seconds=1, device_wait_seconds=2).wait_ratio == 0.5
    assert (Metrics().wait_ratio, Metrics().tokens_per_second) == (0, 0)


def test_a_run_knows_how_far_it_is_behind(tmp_path: Path) -> None:
    """In blocks and eras of the store; an era counts until its last sample was delivered."""
    store = era_store(tmp_path, ERAS[:2])
    batches = open_batches(store, batch_size=1, sequence_length=2)
    assert batches.behind() == Behind(9, 2)
    for step, _ in enumerate(islice(batches, 18), 1):
        assert batches.behind() == Behind(9 - step // 2, (step < 10) + (step < 18))
    grow(store, OPEN_ERAS[:3])
    assert batches.behind() == Behind(7, 1)
    grow(store, ERAS)
    assert batches.behind() == Behind(BLOCKS - 9, 3)


def test_each_pass_has_its_own_head(store: Store) -> None:
    batches = open_batches(store, batch_size=3, eras=range(2), passes=2)
    found = [batches.behind(), *(batches.behind() for _ in batches)]
    assert [behind.blocks for behind in found] == [9, 6, 3, 9, 6, 3, 0]
    assert [behind.eras for behind in found] == [2, 2, 1, 2, 2, 1, 0]
    assert open_batches(store, eras=range(50, 51)).behind() == Behind(0, 0)


def registered(loop: Batches | Mixture, **labels: str) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(BatchesCollector(loop, **labels))
    return registry


def test_what_is_scraped_is_what_the_object_says(tmp_path: Path) -> None:
    batches, other = (open_batches(era_store(tmp_path / name)) for name in ("a", "b"))
    registry = registered(batches, rank="0")
    registered(other)
    list(islice(batches, 3))
    labels = {"stream": STREAM, "rank": "0"}
    totals = {
        "tokens_total": 24,
        "batches_total": 3,
        "bytes_total": 60,
        "step": 3,
        "behind_blocks": 34,
        "behind_eras": 4,
    }
    for name, value in {**totals, "wait_seconds_total": batches.metrics.wait_seconds}.items():
        assert registry.get_sample_value(f"tokenmill_trainer_{name}", labels) == value


def test_each_stream_of_a_mixture_has_numbers(tmp_path: Path) -> None:
    mixture = open_mixture(stores_of(tmp_path, {"code": 3, "web": 3}), {"web": 3, "code": 1})
    registry = registered(mixture)
    list(islice(mixture, 5))
    labels = {"stream": "code+web", "part": "web"}
    for name, value in (("share", 0.75), ("wanted", 7.5), ("delivered", 8), ("passes", 0), ("newest_seconds", 0)):
        assert registry.get_sample_value(f"tokenmill_trainer_mixture_{name}", labels) == value
    assert registry.get_sample_value("tokenmill_trainer_behind_eras", {"stream": "code+web"}) == 5  # one of web is done


def test_a_run_is_served_by_a_server_that_nobody_can_fill(tmp_path: Path) -> None:
    """Its numbers come over HTTP; half-open requests start no threads in the training process."""
    server = serve_metrics(0, registry=registered(open_batches(era_store(tmp_path)), rank="0"))
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
    assert (Path(__file__).parents[2] / "docs" / "trainer_metrics.md").read_text() == page()
    shown = generate_latest(registered(open_batches(era_store(tmp_path)))).decode()
    assert all(line.split()[2] in page() for line in shown.splitlines() if line.startswith("# TYPE"))
