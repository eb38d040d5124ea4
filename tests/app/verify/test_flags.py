"""The command's flags: each does what its help says, seen in what comes out."""

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app.verify.published import settled
from tests.conftest import TopicFactory
from tests.milled import Milled
from tests.service import Raw, send
from tokenmill.app.cli import main
from tokenmill.app.local.broker import Broker
from tokenmill.app.verify import Advance, ChainResult, run, verify
from tokenmill.app.verify.processes import check_partitions
from tokenmill.app.verify.task import PartitionTask

pytestmark = pytest.mark.usefixtures("logging_restored")


def verified(milled: Milled, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """Run the command on the first stream's topics alone; return its JSON."""
    place = ["--bootstrap-servers", milled.settings.bootstrap_servers, "--raw-topics", milled.raw_topic]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["verify", *place, "--stream", milled.train, "--no-store", "--json", *flags])
    assert not ended.value.code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_since_begins_where_the_last_one_ended(
    milled: Milled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written, and read the next time."""
    place = tmp_path / "verified.json"
    first = verified(milled, capsys, "--since", str(place))
    assert place.exists()
    again = verified(milled, capsys, "--since", str(place))
    assert [chain["since"] for chain in first["chains"]] == [0, 0]
    assert all(chain["since"] == chain["raw_range"][1] for chain in again["chains"])
    assert first["blocks"] > again["blocks"]


def test_sample_seed_chooses_the_sample(milled: Milled, capsys: pytest.CaptureFixture[str]) -> None:
    """And without one, chance does."""
    assert verified(milled, capsys, "--sample-seed", "5")["sample_seed"] == 5
    chosen = {verified(milled, capsys)["sample_seed"] for _ in range(2)}
    assert len(chosen) == 2


def test_reference_computes_every_record_and_a_sample_does_not(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Of more text than the first run of a sample is long."""
    published = settled(broker, topic, tmp_path)
    send(published.settings, [Raw(b"a" * 4000) for _ in range(120)])
    name = published.names[0]
    published.publish(name, published.messages(name, 1 << 20))

    sample = verify(published.settings, [name], seed=5, processes=1)
    full = verify(published.settings, [name], reference=True, processes=1)

    (sampled,), (whole,) = sample.chains, full.chains
    assert whole.sampled == [(0, whole.raw_range[1])]
    assert whole.sampled_blocks == full.blocks
    assert sampled.sampled[0][0] == 0
    assert sampled.sampled[0][1] < whole.raw_range[1]
    assert 0 < sampled.sampled_blocks < sample.blocks == full.blocks


def test_the_reference_flag_reaches_the_verification(
    milled: Milled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what every task says of its sample."""
    seen = recorded(monkeypatch)
    verified(milled, capsys, "--reference", "--processes", "1")
    verified(milled, capsys)
    assert [{task.sample.everything for task in tasks} for tasks, _ in seen] == [{True}, {False}]


def test_as_many_processes_work_as_were_asked_for(
    milled: Milled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At most one for each partition."""
    seen = recorded(monkeypatch)
    for processes in ("1", "2", "9"):
        verified(milled, capsys, "--processes", processes)
    assert [running for _, running in seen] == [1, 2, 2]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[PartitionTask], int]]:
    """Return what verifications will do from now on: their tasks, and how many processes worked at them."""
    seen: list[tuple[Sequence[PartitionTask], int]] = []

    def check(tasks: Sequence[PartitionTask], processes: int) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
        before, most = len(multiprocessing.active_children()), 0
        for answer in check_partitions(tasks, processes):
            most = max(most, len(multiprocessing.active_children()) - before)
            yield answer
        seen.append((tasks, most))

    monkeypatch.setattr(run, "check_partitions", check)
    return seen
