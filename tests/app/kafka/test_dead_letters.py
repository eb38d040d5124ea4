"""The codec of dead letters."""

from collections import Counter
from hashlib import sha256
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.odd_batches import batch
from tests.odd_batches import record as record_bytes
from tokenmill.app.kafka.dead_letters import (
    MAX_ORIGINAL_HEADERS_BYTES,
    PREFIX,
    Place,
    RecordPlace,
    SourcePlace,
    Whole,
    cut_letter,
    decode_dead_letter,
    encode_dead_letter,
    letter_partition,
    parse_place,
)

names = st.text() | st.sampled_from([f"{PREFIX}{name}" for name in ("offset", "x", "source", "run", "topic")])
original_headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=4)
topics = st.text("az09._-", min_size=1, max_size=9)
sources = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
records = st.builds(RecordPlace, topics, st.integers(0, 99), st.integers(0, 2**53))
from_sources = st.builds(SourcePlace, topics, st.text("0123456789abcdef", min_size=1, max_size=16), sources)


@given(st.none() | st.binary(max_size=9), st.binary(max_size=9), original_headers, st.text(), records | from_sources)
def test_a_dead_letter_is_read_as_it_was_written(
    key: bytes | None, value: bytes, original: list[tuple[str, bytes | None]], detail: str, place: Place
) -> None:
    own = original if isinstance(place, RecordPlace) else []
    reasons = {"reason": "too_deep", "detail": detail, "exception": "ValueError"}
    headers = encode_dead_letter(place, **reasons, timestamp=-5, original=own)
    letter = decode_dead_letter(SimpleNamespace(key=key, value=value, headers=headers))
    assert letter is not None
    assert letter.place == place
    assert (letter.timestamp, letter.reason, letter.exception) == (-5, "too_deep", "ValueError")
    assert detail.startswith(letter.detail)
    assert (letter.key, letter.value) == (key, value)
    assert letter.headers == [(name, found or b"") for name, found in own]
    assert letter.has_value == (isinstance(place, RecordPlace) or bool(value))


def test_headers_are_copied_up_to_a_limit() -> None:
    """A header bomb, or a long name, must not make a dead letter larger than its topic takes."""
    own = [(f"name {n}", b"x" * 100) for n in range(1000)]
    place = RecordPlace("raw", 0, 5)
    found = encode_dead_letter(place, reason="r", detail="d" * 10_000, timestamp=0, exception="E" * 999, original=own)
    size = sum(len(name) + len(value) for name, value in found if not name.startswith(PREFIX))
    assert 1750 < size <= MAX_ORIGINAL_HEADERS_BYTES
    empty = [("", None)] * 1_000_000  # they have no bytes of their own, and take two each on their way
    assert len(encode_dead_letter(place, reason="r", detail="", timestamp=0, original=empty)) < 300
    assert len(dict(found)[f"{PREFIX}detail"]) == 1024
    assert len(dict(found)[f"{PREFIX}exception"]) == 100
    path = SourcePlace("raw", "ab", "/long" * 1000 + ":17")
    source = dict(encode_dead_letter(path, reason="r", detail="", timestamp=0))[f"{PREFIX}source"]
    assert len(source) == 1024
    assert source.endswith(b"/long:17")


@given(st.text(max_size=20) | (records | from_sources).map(str))
def test_a_place_is_read_as_it_is_written(name: str) -> None:
    place = parse_place(name)
    assert place is None or parse_place(str(place)) == place
    assert parse_place("raw.text/3/17") == RecordPlace("raw.text", 3, 17)
    assert parse_place("raw.text:0af:/a:b/c.jsonl:17") == SourcePlace("raw.text", "0af", "/a:b/c.jsonl:17")
    for none in ("raw.text/3/", "raw.text/3/-1", "/3/1", "raw.text:xyz:a", "raw.text:ab:", ":ab:c", "raw.text", ""):
        assert parse_place(none) is None


@pytest.mark.parametrize("missing", ["reason", "topic", "partition", "offset", ""])
def test_what_lacks_a_header_is_none_of_ours(missing: str) -> None:
    """Anybody may write to the topic."""
    headers = encode_dead_letter(RecordPlace("raw", 0, 5), reason="r", detail="", timestamp=0)
    left = [header for header in headers if missing and header[0] != PREFIX + missing]
    assert decode_dead_letter(SimpleNamespace(key=None, value=b"", headers=left)) is None


@given(records | from_sources, st.integers(1, 9))
def test_a_place_has_one_partition_and_those_of_a_file_are_spread(place: Place, partitions: int) -> None:
    number = letter_partition(place, partitions)
    assert 0 <= number < partitions
    assert number == letter_partition(place, partitions)
    assert not isinstance(place, RecordPlace) or number == place.partition % partitions
    counts = Counter(letter_partition(SourcePlace("raw", "ab", f"a.jsonl:{line}"), 4) for line in range(1000))
    assert min(counts[number] for number in range(4)) > 150


@pytest.mark.parametrize("number", [b"9" * 5000, b"--7"])
@pytest.mark.parametrize("header", ["partition", "offset", "timestamp"])
def test_a_number_that_no_computer_has_is_none(header: str, number: bytes) -> None:
    """Python refuses to read 5,000 digits, and a command must not end over them. Only a timestamp may be missing."""
    headers = encode_dead_letter(RecordPlace("raw", 0, 5), reason="r", detail="", timestamp=7)
    odd = [(name, number if name == PREFIX + header else value) for name, value in headers]
    found = decode_dead_letter(SimpleNamespace(key=None, value=None, headers=odd))
    assert (found is None) == (header != "timestamp")
    assert found is None or found.timestamp == -1
    assert parse_place(f"raw/0/{number.decode()}") is None


FORGED = st.lists(
    st.tuples(st.sampled_from([f"{PREFIX}{n}" for n in ("value-bytes", "key-bytes", "reason")]), st.just(b"7"))
)
SIZES = st.none() | st.integers(0, 5000)


@given(SIZES, SIZES, st.integers(1200, 9000), FORGED)
@example(None, None, 1200, [(f"{PREFIX}value-bytes", b"7")] * 30)
def test_a_letter_fits_its_topic_whatever_the_record_is(
    key_bytes: int | None, value_bytes: int | None, most: int, own: list[tuple[str, bytes | None]]
) -> None:
    """What does not fit is cut, the key to half of the room, and the letter says what was there.

    Headers of its own that are long, or many, are left out from the end where the topic does not take them.
    """
    key = None if key_bytes is None else b"k" * key_bytes
    value = None if value_bytes is None else b"v" * value_bytes
    headers = encode_dead_letter(RecordPlace("raw", 0, 5), reason="r", detail="", timestamp=7, original=own)
    letter = cut_letter(key, value, headers, most)
    own_headers = [(name.encode(), content) for name, content in letter.headers]
    assert len(batch([record_bytes(0, letter.value, key=letter.key, headers=own_headers)])) <= most
    found = decode_dead_letter(SimpleNamespace(key=letter.key, value=letter.value, headers=letter.headers))
    assert found is not None
    assert (found.place, found.reason, found.timestamp) == (RecordPlace("raw", 0, 5), "r", 7)
    for whole, kept, about in ((value, found.value, found.whole_value), (key, found.key, found.whole_key)):
        if about is None:
            assert kept == whole
        else:
            assert whole is not None
            assert kept is not None
            assert whole.startswith(kept)
            assert about == Whole(len(whole), sha256(whole).hexdigest())
    assert found.has_value == (found.whole_value is None)
    forged_bytes = sum(len(name) + 11 for name, _ in own)
    if len(key or b"") + len(value or b"") < most - 1200 - forged_bytes:
        assert (found.whole_value, found.whole_key) == (None, None)
    if found.whole_key is not None and found.whole_value is not None:
        assert len(found.value or b"") >= len(found.key or b"")
