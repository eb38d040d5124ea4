"""The command's flags: each does what its help says, seen in what comes out."""

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import invoke
from tests.app.tools.verify.published import Published
from tests.milled import Milled
from tests.service import Raw, send
from tokenmill.app.tools.verify import Advance, ChainResult, verification, verify
from tokenmill.app.tools.verify.partition_check import PartitionTask, check_partitions


def verified(milled: Milled, *flags: str) -> dict[str, Any]:
    """Run the command on the first stream's topics alone; return its JSON."""
    place = ["--bootstrap-servers", milled.settings.bootstrap_servers, "--raw-topics", milled.raw_topic]
    told = invoke("verify", *place, "--stream", milled.train, "--no-store", "--json", *flags, code=0)
    found: dict[str, Any] = json.loads(told.out)
    return found


def test_since_begins_where_the_last_one_ended(milled: Milled, tmp_path: Path) -> None:
    """The file is written, and read the next time."""
    place = tmp_path / "verified.json"
    first = verified(milled, "--since", str(place))
    assert place.exists()
    again = verified(milled, "--since", str(place))
    chains = [(chain["stream"], chain["partition"], chain["since"], chain["store_blocks"]) for chain in first["chains"]]
    assert chains == [(milled.train, 0, 0, None), (milled.train, 1, 0, None)]
    assert all(chain["since"] == chain["raw_range"][1] for chain in again["chains"])
    assert first["blocks"] > again["blocks"]


def test_reference_computes_every_record_and_a_sample_does_not(published: Published) -> None:
    """Of more text than the first run of a sample is long."""
    send(published.settings, [Raw(f"{number} ".encode() * 1000) for number in range(150)])
    name = published.names[0]
    messages = published.messages(name, 1 << 14)
    for first in range(0, len(messages), 2):  # one batch may not be larger than one message may be
        published.publish(name, messages[first : first + 2])

    sample = verify(published.settings, [name], seed=5, processes=1)
    full = verify(published.settings, [name], reference=True, processes=1)

    (sampled,), (whole,) = sample.chains, full.chains
    assert whole.sampled == [(0, whole.raw_range[1])]
    assert whole.sampled_blocks == full.blocks
    assert sampled.sampled[0][0] == 0
    assert sampled.sampled[0][1] < whole.raw_range[1]
    assert 0 < sampled.sampled_blocks < sample.blocks == full.blocks


def test_reference_processes_and_seed_are_as_they_were_asked_for(
    milled: Milled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one process for each partition; without flags, a sample that chance chose."""
    seen = recorded(monkeypatch)
    asked = verified(milled, "--reference", "--processes", "1", "--sample-seed", "5")
    plain = verified(milled, "--processes", "9")
    assert [{task.sample.everything for task in tasks} for tasks, _ in seen] == [{True}, {False}]
    assert [running for _, running in seen] == [1, 2]
    assert asked["sample_seed"] == 5 != plain["sample_seed"]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[PartitionTask], int]]:
    """Return what verifications will do from now on: their tasks, and how many processes worked at them."""
    seen: list[tuple[Sequence[PartitionTask], int]] = []

    def check(tasks: Sequence[PartitionTask], processes: int) -> Iterator[tuple[int, Advance | list[ChainResult]]]:
        before, most = len(multiprocessing.active_children()), 0
        for answer in check_partitions(tasks, processes):
            most = max(most, len(multiprocessing.active_children()) - before)
            yield answer
        seen.append((tasks, most))

    monkeypatch.setattr(verification, "check_partitions", check)
    return seen
