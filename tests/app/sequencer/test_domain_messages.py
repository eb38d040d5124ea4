"""The records of a domain's topics: what goes in comes out, and what is none is refused."""

from contextlib import nullcontext, suppress
from struct import unpack_from

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sequencer.domain_messages import (
    JudgedRange,
    Remembered,
    SignedRange,
    SliceStart,
    VerdictEnd,
    domain_fingerprint,
    domain_record,
    place_name,
)
from tokenmill.app.settings import Domain
from tokenmill.errors import DamagedError

FINGERPRINT = bytes(range(16))
DOMAIN = Domain("web", ("a", "b"), "", {"name": "near", "version": 1})
NUMBERS = st.integers(0, 2**40)
HASHES = st.integers(0, 2**64 - 1)


@st.composite
def signed_ranges(draw: st.DrawFn) -> SignedRange:
    offsets = sorted(draw(st.sets(NUMBERS, max_size=8)))
    begin, end = (min(offsets), max(offsets) + 1) if offsets else (3, 9)
    hashes = [draw(st.lists(HASHES, min_size=3, max_size=3)) for _ in offsets]
    rows = np.array(hashes, np.uint64).reshape(len(offsets), 3)
    source = (draw(st.integers(0, 1)), draw(st.integers(0, 100)))
    return SignedRange(
        source, begin, end, Remembered(end - 1, draw(st.integers(0, 2**32 - 1))), np.array(offsets), rows
    )


@given(signed_ranges(), NUMBERS)
def test_signed_ranges_come_back_and_can_be_cut(signed: SignedRange, at: int) -> None:
    back = SignedRange.unpack(signed.pack(FINGERPRINT), FINGERPRINT, 3, 2)
    assert back.pack(FINGERPRINT) == signed.pack(FINGERPRINT)
    for name in ("source", "begin", "end", "remembered"):
        assert getattr(back, name) == getattr(signed, name)
    rest = signed.since(at)
    assert rest.offsets.tolist() == [one for one in signed.offsets.tolist() if one >= at]
    assert len(rest.hashes) == len(rest.places) == len(rest.offsets)


@given(signed_ranges(), st.integers(1, 10))
def test_what_is_no_signed_range_of_the_domain_is_refused(signed: SignedRange, cut: int) -> None:
    packed = signed.pack(FINGERPRINT)
    for value in (packed[:-cut], packed + b"1", b"junk", b"", None, signed.pack(bytes(16))):
        with pytest.raises(DamagedError):
            SignedRange.unpack(value, FINGERPRINT, 3, 2)
    for width, topics in ((4, 2), (3, signed.source[0])):
        with pytest.raises(DamagedError):
            SignedRange.unpack(packed, FINGERPRINT, width, topics)


@given(st.sets(NUMBERS, max_size=6), st.binary(min_size=16, max_size=16))
def test_verdicts_come_back_and_every_bit_of_them_is_in_their_hash(duplicates: set[int], before: bytes) -> None:
    """So readers that have the same hash have the same verdicts."""
    offsets = np.array(sorted(duplicates), np.int64)
    count = len(offsets)
    places = np.arange(2 * count, dtype=np.uint64).reshape(count, 2)
    end = max(duplicates, default=1) + 1
    judged = JudgedRange(0, end, Remembered(0, 5), 7, offsets, np.full(count, 2, np.uint8), places, before)
    packed = judged.pack(FINGERPRINT, 4)
    back = JudgedRange.unpack(packed, FINGERPRINT, 4, 2)
    assert back.after == judged.after == VerdictEnd(end, judged.after.chain)
    for value in (packed[:-1], packed + b"1", b"", None, judged.pack(bytes(16), 4), judged.pack(FINGERPRINT, 5)):
        with pytest.raises(DamagedError):
            JudgedRange.unpack(value, FINGERPRINT, 4, 2)
    for at in range(len(FINGERPRINT) + 4, len(packed)):
        other = bytearray(packed)
        other[at] ^= 1
        with suppress(DamagedError):
            assert JudgedRange.unpack(bytes(other), FINGERPRINT, 4, 2).after.chain != judged.after.chain


def test_a_verdict_that_names_a_topic_of_no_domain_does_not_count() -> None:
    for topic, known in ((1, True), (2, False), (2**31, False)):
        places = np.array([[topic << 32 | 7, 5]], np.uint64)
        judged = JudgedRange(0, 9, Remembered(), 7, np.array([3]), np.ones(1, np.uint8), places, bytes(16))
        with nullcontext() if known else pytest.raises(DamagedError, match="a raw topic that the domain lacks"):
            JudgedRange.unpack(judged.pack(FINGERPRINT, 4), FINGERPRINT, 4, 2)


def test_slices_and_names_come_back() -> None:
    one = SliceStart(3, 17, 30, {(0, 1): VerdictEnd(5, bytes(16)), (1, 0): VerdictEnd(9, FINGERPRINT)})
    assert SliceStart.unpack(one.pack(FINGERPRINT), FINGERPRINT) == one
    for value in (b"{}", b"[", None, one.pack(bytes(16))):
        with pytest.raises(DamagedError):
            SliceStart.unpack(value, FINGERPRINT)
    assert place_name(DOMAIN, 1 << 32 | 7, 12) == "b/7/12"
    assert domain_record(DOMAIN) == b'{"dedup":{"name":"near","version":1},"raw_topics":["a","b"]}'
    assert len({domain_fingerprint(DOMAIN), domain_fingerprint(DOMAIN._replace(raw_topics=("b", "a")))}) == 2


@given(signed_ranges())
def test_messages_are_as_the_page_has_them(signed: SignedRange) -> None:
    """Read with `struct` and the offsets of docs/format.md alone."""
    packed = signed.pack(FINGERPRINT)
    assert (packed[:4], packed[4:20]) == (b"TMS1", FINGERPRINT)
    count, width = unpack_from("<II", packed, 56)
    assert unpack_from("<IIqqqI", packed, 20) == (*signed.source, signed.begin, signed.end, *signed.remembered)
    assert list(unpack_from(f"<{count}q", packed, 64)) == signed.offsets.tolist()
    hashes = unpack_from(f"<{count * width}Q", packed, 64 + 8 * count)
    assert list(hashes) == signed.hashes.reshape(-1).tolist()
    kinds = np.ones(count, np.uint8)
    judged = JudgedRange(3, 2**41, Remembered(8, 9), 7, signed.offsets, kinds, signed.places, FINGERPRINT[::-1])
    told = judged.pack(FINGERPRINT, 11)
    assert (told[:4], told[4:20], told[68:84]) == (b"TMV1", FINGERPRINT, FINGERPRINT[::-1])
    assert unpack_from("<qqqqIqI", told, 20) == (11, 3, 2**41, 8, 9, 7, count)
    assert list(unpack_from(f"<{count}q", told, 84)) == signed.offsets.tolist()
    assert list(unpack_from(f"<{2 * count}Q", told, 84 + 8 * count)) == signed.places.reshape(-1).tolist()
    assert list(told[84 + 24 * count :]) == kinds.tolist()
    assert judged.after.chain == xxhash.xxh3_128_digest(told[28:])
