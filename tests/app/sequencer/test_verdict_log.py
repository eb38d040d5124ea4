"""Verdicts as mills take them, as the sequencer goes on from them, and as one order has them on a real broker."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types import TP

from tests.app.sequencer.judged_order import domain_settings, feed, require_one_order
from tests.app.tools.verify.test_domain_check import Written, write_domain
from tests.conftest import TopicFactory
from tests.service import Service, in_own_loop
from tokenmill.app.kafka.clients import offsets
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.sequencer import app as sequencer_app
from tokenmill.app.sequencer import rebuilding
from tokenmill.app.sequencer.app import SignaturePartition
from tokenmill.app.sequencer.domain_messages import NO_CHAIN, JudgedRange, Remembered
from tokenmill.app.sequencer.verdict_log import VerdictQueue
from tokenmill.app.settings import Domain
from tokenmill.documents import Record
from tokenmill.wire.chain import record_crc

RECORDS = [Record(offset, 0, None, b"text %d" % offset) for offset in range(12) if offset != 7]


def judged(begin: int, end: int, *duplicates: int) -> JudgedRange:
    last = next(record for record in reversed(RECORDS) if record.offset < end)
    offsets, kinds = np.array(duplicates, np.int64), np.ones(len(duplicates), np.uint8)
    remembered = Remembered(last.offset, record_crc(last.key, last.value))
    return JudgedRange(begin, end, remembered, 0, offsets, kinds, np.zeros((len(offsets), 2), np.uint64), NO_CHAIN)


def queue(*ranges: JudgedRange, passed: int = 0) -> VerdictQueue:
    found = VerdictQueue(Domain("d", ("raw",), "", {}))
    found.passed = passed
    for one in ranges:
        found.add(one)
    return found


def test_duplicates_are_told_once_with_the_records_that_they_are_on() -> None:
    verdicts = queue(judged(2, 5, 3), judged(5, 10, 5, 9), passed=2)
    assert (verdicts.begin, verdicts.end) == (2, 10)
    seen = {0: Rejected("of", "before")}
    for end, wanted in ((4, [3]), (6, [5]), (9, []), (12, [9])):
        verdicts.tell(seen, end)
        assert sorted(seen) == wanted
        assert set(seen.values()) <= {Rejected("duplicate_exact", "the text of raw/0/0")}


def test_the_first_record_that_is_not_the_one_judged_is_named() -> None:
    ranges = judged(0, 3), judged(3, 6), judged(6, 9)
    assert queue(*ranges).pass_over(RECORDS, 12) is None
    other = [record if record.offset not in {5, 8} else record._replace(value=b"other") for record in RECORDS]
    assert queue(*ranges).pass_over(other, 12) == 5
    assert queue(*ranges, passed=6).pass_over(other, 12) == 8
    assert queue(*ranges, passed=9).pass_over([], 12) is None
    assert queue(*ranges).pass_over([record for record in RECORDS if record.offset != 2], 12) == 2
    verdicts = queue(*ranges, passed=6)
    assert (verdicts.pass_over([], 4), verdicts.passed) == (None, 6)
    assert (verdicts.pass_over(RECORDS, 9), verdicts.passed) == (None, 9)


def resumed(written: Written, monkeypatch: pytest.MonkeyPatch, times: int) -> SignaturePartition:
    """Return what resumed while a broker said so many times that the log ends before what verdicts are out on."""
    signatures, told = written.domain.signatures_topic, list[int]()

    async def too_low(client: AIOKafkaConsumer, partitions: list[TopicPartition]) -> Mapping[TopicPartition, Any]:
        found = await offsets(client, partitions)
        if partitions == [TopicPartition(signatures, 0)] and len(told) < times:
            told.append(1)
            return {partition: (first, end - 9) for partition, (first, end) in found.items()}
        return found

    monkeypatch.setattr(rebuilding, "offsets", too_low)
    monkeypatch.setattr(sequencer_app, "AGAIN_SECONDS", 0.01)
    app = AsyncMock(leader=Mock(return_value=None), set_durable=Mock(), **{"send_record.return_value": 0})
    partition = SignaturePartition(TP(signatures, 0), written.settings, written.domain, app)
    in_own_loop(partition.resume)
    return partition


@pytest.mark.needs("minutes")
def test_an_end_that_is_told_too_low_for_a_moment_halts_nothing(
    broker: Broker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked again, for a while; a log that stays so has lost messages."""
    written = write_domain(broker, topic, tmp_path)
    partition = resumed(written, monkeypatch, 2)
    assert partition.halted is None
    assert partition.position == 1 + max(found[-1].signature for found in written.verdicts.values())
    monkeypatch.setattr(sequencer_app, "DOUBT_SECONDS", 0.05)
    assert "lost messages of which verdicts are out" in (resumed(written, monkeypatch, 10**6).halted or "")


def test_what_is_kept_is_what_one_order_keeps(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> None:
    settings = domain_settings(broker, topic, tmp_path)
    feed(settings, random.Random("concat"), 300)
    with Service(settings, tmp_path) as service:
        service.mill(2)
        service.sequencer()
        service.segment()
        require_one_order(service)


@pytest.mark.needs("minutes")
def test_a_killed_sequencer_goes_on_from_its_disk(broker: Broker, topic: Callable[..., str], tmp_path: Path) -> None:
    settings = domain_settings(broker, topic, tmp_path)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        for number, breaks in enumerate([None, None, remove_slice, change_digest, None]):
            sequencer = service.sequencer()
            feed(settings, random.Random(number), 150)
            require_one_order(service)
            service.wait_until(lambda: bool(list(tmp_path.glob("tokenmill-window-*/note.json"))))
            assert ("the window is on the disk" in sequencer.log) == (number in {1, 2})
            sequencer.kill()
            if breaks is not None:
                breaks(next(tmp_path.glob("tokenmill-window-*")))
        last = service.sequencer()
        feed(settings, random.Random(9), 150)
        require_one_order(service)
        assert "the window is on the disk" in last.log  # also after a note that did not hold


def remove_slice(folder: Path) -> None:
    max(folder.glob("seen-*.bin")).unlink()


def change_digest(folder: Path) -> None:
    note = json.loads((folder / "note.json").read_bytes())
    note["digests"][-1] ^= 1
    (folder / "note.json").write_text(json.dumps(note))
