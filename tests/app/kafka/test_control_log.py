"""What a control topic says, whatever stands on it: kinds that are known, kinds that are not, and junk."""

import json
import os
import tracemalloc
import zlib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE
from tests.strategies import nasty_bytes
from tokenmill.app.kafka import control_log as module
from tokenmill.app.kafka.control_log import (
    IGNORE_KEY,
    LIST_PREFIX,
    PART_BYTES,
    SKIP_KEY,
    SKIP_REQUEST_KEY,
    ControlLog,
    TokenizerParts,
    file_parts,
    ignore_record,
    skip_record,
    skip_request_record,
)
from tokenmill.eras import ERA_KEY, EraFollower, LogRecord, first_hash
from tokenmill.recipe import GENESIS_KEY, Genesis

FIRST = Genesis("raw-text.train", RECIPE, (0, 7), 4096, {"numpy": "2"})
BRACKETS = b"[" * 200_000
PLACE = b'{"partition": 0, "offset": 5}'

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["partition", "offset", "hash", "recipe", "era"]), inner, max_size=5)
    ),
    max_leaves=12,
)
keys = (
    st.none()
    | nasty_bytes
    | st.sampled_from([GENESIS_KEY, SKIP_KEY, SKIP_REQUEST_KEY, IGNORE_KEY, ERA_KEY, b"skip/1", b"tokenizer/"])
    | st.builds("tokenizer/{}/{}/{}".format, st.just("0" * 64), st.integers(0, 3), st.integers(0, 3)).map(str.encode)
)
values = (
    st.none()
    | nasty_bytes
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([BRACKETS, b'{"a":' * 200_000, b"9" * 5000, b"[]", b"junk", PLACE])
)
records = st.lists(st.tuples(keys, values), max_size=6)


def read(found: list[tuple[bytes | None, bytes | None]]) -> ControlLog:
    log = ControlLog("raw-text.train")
    for key, value in found:
        log.add(key, value)
    return log


@given(records, st.data())
@pytest.mark.slow
def test_junk_changes_nothing_of_what_is_right(
    junk: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    right = [(GENESIS_KEY, FIRST.pack()), skip_record(0, 5), skip_request_record(1, 7), ignore_record(0, 3, bytes(16))]
    mixed: list[tuple[bytes | None, bytes | None]] = [*right]
    for record in junk:
        mixed.insert(data.draw(st.integers(0, len(mixed))), record)
    log = read(mixed)
    assert log.genesis == FIRST
    assert 5 in log.skips[0]
    assert 7 in log.skip_requests[1]
    assert log.ignored.size(0) >= 1


@given(records)
@pytest.mark.slow
def test_whatever_stands_there_is_no_era(found: list[tuple[bytes | None, bytes | None]]) -> None:
    follower = EraFollower("raw-text.train", bytes(16))
    for offset, (key, value) in enumerate(found):
        assert follower.add(LogRecord(offset, key, value)) is None
    follower.finish()


@pytest.mark.parametrize("closed", [2**48, 2**63, 2**64, 10**400])
def test_an_era_with_numbers_beyond_all_bounds_is_ignored(closed: int) -> None:
    """They would not fit the index of a store, and end its worker again and again."""
    follower = EraFollower("raw-text.train", bytes(16))
    for offset, number in enumerate((closed, 7)):
        values = {"before": first_hash(bytes(16)).hex(), "closed": number, "end": True, "era": 0, "ranges": []}
        value = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
        assert (follower.add(LogRecord(offset, ERA_KEY, value)) is None) == (number == closed)


@pytest.mark.parametrize("key", [SKIP_KEY, SKIP_REQUEST_KEY, IGNORE_KEY])
@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"{", b"\xff", b"[]", b"7", b"{}", b'{"partition": 0}', b'{"partition": "0", "offset": 1.5}',
        b'{"partition": true, "offset": 5}', b'{"partition": 0, "offset": -1}', b'{"partition": 99999, "offset": 5}',
        b'{"partition": 0, "offset": 9223372036854775808}', BRACKETS,
    ],
)  # fmt: skip
def test_a_record_of_a_known_kind_that_is_none_is_junk(key: bytes, value: bytes | None) -> None:
    log = ControlLog()
    assert log.add(key, value)
    assert (log.junk, log.skips, log.skip_requests, log.ignored.offsets()) == (1, {}, {}, {})


@pytest.mark.parametrize("found", [None, "", "00", 7, "zz" * 16])
def test_a_message_without_its_hash_is_not_ignored(found: Any) -> None:
    """It would be any message at that offset."""
    log = ControlLog()
    assert log.add(IGNORE_KEY, json.dumps({"partition": 0, "offset": 5, "hash": found}).encode())
    assert log.ignored.size(0) == 0


def test_other_kinds_are_no_junk() -> None:
    """What a later version writes there is left alone, and not complained about."""
    assert read([(b"genesis2", BRACKETS), (None, b"x"), (b"", None), (b"skip/1", b"junk")]).junk == 0


def test_skips_are_collected_by_partition_and_an_empty_topic_has_none() -> None:
    log = read([skip_record(0, 5), skip_record(1, 5), skip_record(0, 9), skip_record(0, 5), skip_request_record(0, 7)])
    assert (log.skips, log.skip_requests) == ({0: {5, 9}, 1: {5}}, {0: {7}})
    log = read([])
    assert (log.genesis, log.skips, log.tokenizer("0" * 64)) == (None, {}, None)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_forged_part_of_a_tokenizer_takes_no_memory() -> None:
    """Half a megabyte that would be hundreds, decompressed."""
    bomb = zlib.compress(bytes(500_000_000), 9)
    log = read([(GENESIS_KEY, FIRST.pack())])
    digest = RECIPE.tokenizer_sha256
    tracemalloc.start()
    try:
        log.add(f"tokenizer/{digest}/0/1".encode(), bomb)
        assert log.tokenizer(digest) is None
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_lists_of_steps_are_found_by_their_hash() -> None:
    lists = {sha256(content).hexdigest(): content for content in (b"bad\n", os.urandom(PART_BYTES + 1))}
    words, texts = (f"sha256:{digest}" for digest in lists)
    steps = ({"name": "words", "words": words}, {"name": "decontaminate", "texts": texts})
    recipe, log = replace(RECIPE, pipeline=steps), ControlLog()
    log.add(GENESIS_KEY, replace(FIRST, recipe=recipe).pack())
    assert log.lists() == {}
    (small, (first, second)) = (list(file_parts(content, LIST_PREFIX)) for content in lists.values())
    for key, value in (*small, first, *file_parts(b"another", LIST_PREFIX)):
        assert log.add(key, value) is None
    assert log.lists() == dict(list(lists.items())[:1])
    assert log.add(second[0], second[1][:-1]) is None  # damaged
    assert len(log.lists()) == 1
    assert log.add(*second) is None
    assert log.lists() == lists
    assert log.tokenizer(next(iter(lists))) is None


CONTENT = bytes(range(256)) * 4
DIGEST = sha256(CONTENT).hexdigest()


def added(records: Sequence[tuple[bytes, bytes]], digest: str = DIGEST) -> bytes | None:
    parts = TokenizerParts(digest)
    for key, value in records:
        parts.add(key, value)
    return parts.content()


@st.composite
def tokenizers(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    content = draw(st.binary(max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART_BYTES", draw(st.integers(1, 30)))
        return content, list(file_parts(content))


@given(tokenizers(), st.data())
def test_a_tokenizer_is_found_whatever_the_order_of_its_parts(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """Two workers may both have written it, their parts mixed."""
    content, parts = tokenizer
    records = data.draw(st.permutations([*parts, *data.draw(st.lists(st.sampled_from(parts)))]))
    assert added(records, sha256(content).hexdigest()) == content


@given(tokenizers(), st.data())
def test_a_tokenizer_with_a_missing_or_damaged_part_is_none(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """So a worker that has the file writes it again; after that it is there, and nothing takes it away."""
    content, parts = tokenizer
    digest = sha256(content).hexdigest()
    place = data.draw(st.integers(0, len(parts) - 1))
    key, value = parts[place]
    wrong = data.draw(st.sampled_from([value + b"x", value[:-1], bytes([value[0] ^ 1]) + value[1:]]))
    assert added(parts[:place] + parts[place + 1 :], digest) is None
    damaged = [*parts[:place], (key, wrong), *parts[place + 1 :]]
    assert added(damaged, digest) in (None, content)  # what follows its end is overlooked
    assert added([*damaged, *parts], digest) == content
    assert added([*parts, *damaged], digest) == content


def test_parts_of_others_are_left_alone() -> None:
    others = [(f"tokenizer/{'0' * 64}/0/1".encode(), b"x"), *file_parts(CONTENT, LIST_PREFIX)]
    assert added(others) is None
    assert added([*others, *file_parts(CONTENT)]) == CONTENT


@pytest.mark.parametrize("key", [f"tokenizer/{DIGEST}/5/2", f"tokenizer/{DIGEST}/0/0", "tokenizer/7/0/1", "tokenizer/"])
def test_what_can_be_no_part_is_said_to_be_none(key: str) -> None:
    with pytest.raises(ValueError, match="no part"):
        TokenizerParts(DIGEST).add(key.encode(), b"")


def test_parts_that_make_nothing_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    parts = TokenizerParts(DIGEST)
    for count in range(2, 12):
        parts.add(f"tokenizer/{DIGEST}/0/{count}".encode(), bytes(100))
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        parts.add(f"tokenizer/{DIGEST}/1/12".encode(), b"x")
    parts.add(f"tokenizer/{DIGEST}/0/2".encode(), bytes(100))  # the same again takes no more


def test_parts_fit_into_a_topic_as_it_is_by_default() -> None:
    """1 MiB, with room for the record's frame."""
    content = b"".join(sha256(bytes([n % 256, n // 256])).digest() for n in range(60_000))
    parts = list(file_parts(content))
    assert max(len(value) for _, value in parts) <= (1 << 20) - (1 << 16)
    assert len(parts) > 1
    assert added(parts, sha256(content).hexdigest()) == content
