"""What a training loop got, and how far it is behind."""

from itertools import islice
from pathlib import Path

from tests.consumers.scenes import BLOCKS, ERAS, OPEN_ERAS, era_store, grow, open_batches
from tokenmill.consumers import Behind, Metrics
from tokenmill.store import Store


def test_what_was_delivered_is_counted(store: Store) -> None:
    batches = open_batches(store, batch_size=3, sequence_length=2, world_size=2)
    assert batches.metrics == Metrics()
    for _ in islice(batches, 2):
        pass
    earlier = batches.metrics
    for _ in islice(batches, 3):
        pass
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
