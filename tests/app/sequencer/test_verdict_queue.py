"""Verdicts that wait for the records that they are on."""

import numpy as np

from tokenmill.app.milling.steps import Rejected
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
    assert verdicts.pass_over([], 4) is None
    assert verdicts.passed == 6
    assert verdicts.pass_over(RECORDS, 9) is None
    assert verdicts.passed == 9
