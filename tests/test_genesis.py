"""The control topic: what settles a stream, the tokenizer in parts, the skip list."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE
from tests.strategies import nasty_bytes
from tokenmill import genesis
from tokenmill.errors import DamagedError, FingerprintError
from tokenmill.genesis import (
    GENESIS_KEY,
    SKIP_KEY,
    ControlLog,
    Genesis,
    skip_record,
    skip_request_record,
    tokenizer_parts,
)

FIRST = Genesis("raw-text.train", RECIPE, (0, 7), 4096, {"numpy": "2"})
CONTENT = bytes(range(256)) * 4
DIGEST = sha256(CONTENT).hexdigest()

Records = Sequence[tuple[bytes | None, bytes | None]]


def _log(records: Records) -> ControlLog:
    log = ControlLog()
    for key, value in records:
        log.add(key, value)
    return log


@st.composite
def tokenizers(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Draw a tokenizer and its parts, cut small."""
    content = draw(st.binary(max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(genesis, "PART_BYTES", draw(st.integers(1, 30)))
        return content, list(tokenizer_parts(content))


def test_the_first_genesis_wins() -> None:
    """Whatever a second worker wrote, or something else later, the stream is settled."""
    second = Genesis("raw-text.train", RECIPE, (5, 5), 8)
    log = _log([(GENESIS_KEY, FIRST.pack()), (GENESIS_KEY, second.pack()), (GENESIS_KEY, b"garbage")])
    assert log.genesis == FIRST


def test_a_genesis_survives_its_bytes() -> None:
    """Recipe, starts, segment length and versions."""
    assert Genesis.from_dict(json.loads(FIRST.pack())) == FIRST


def test_a_partition_that_was_added_later_starts_at_0() -> None:
    """The others at the offsets that the genesis names."""
    assert [FIRST.start(partition) for partition in range(4)] == [0, 7, 0, 0]


def test_an_empty_control_topic_settles_nothing() -> None:
    """No genesis, no skips, no tokenizer."""
    log = _log([])
    assert (log.genesis, log.skips, log.tokenizer(DIGEST)) == (None, {}, None)


@given(
    st.none() | nasty_bytes | st.sampled_from([b"era", b"genesis2", b"skip/1", b"tokenizer/"]), st.none() | nasty_bytes
)
def test_other_kinds_of_records_are_left_alone(key: bytes | None, value: bytes | None) -> None:
    """What a later version or somebody else writes there changes nothing."""
    if key not in (GENESIS_KEY, SKIP_KEY):
        assert _log([(key, value), (GENESIS_KEY, FIRST.pack())]) == _log([(GENESIS_KEY, FIRST.pack())])


def test_a_genesis_that_was_changed_by_hand_is_refused() -> None:
    """Its recipe no longer hashes to the fingerprint beside it."""
    values = FIRST.to_dict()
    values["recipe"]["min_chars"] = 7
    with pytest.raises(DamagedError, match="changed by hand"):
        Genesis.from_dict(values)


def test_a_genesis_of_another_format_is_refused() -> None:
    """With the version that is needed."""
    values: dict[str, Any] = FIRST.to_dict()
    values["recipe"]["format"] = 2
    with pytest.raises(FingerprintError, match="format 2"):
        _log([(GENESIS_KEY, json.dumps(values).encode())])


@pytest.mark.parametrize("key", [GENESIS_KEY, SKIP_KEY])
@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"\xff", b"[]", b"7", b"{}", b'{"partition": 0}', b'{"partition": "0", "offset": 1.5}']
)
def test_records_of_known_kinds_that_are_none_are_damage(key: bytes, value: bytes | None) -> None:
    """Something else writes to the control topic: nobody may guess what it meant."""
    with pytest.raises(DamagedError, match="none"):
        _log([(key, value)])


@pytest.mark.parametrize("recipe", [[], None, "x", {}])
def test_a_genesis_without_a_recipe_is_refused(recipe: object) -> None:
    """By one of our own errors."""
    with pytest.raises((DamagedError, FingerprintError)):
        _log([(GENESIS_KEY, json.dumps({**FIRST.to_dict(), "recipe": recipe}).encode())])


@given(tokenizers(), st.data())
def test_a_tokenizer_is_found_whatever_the_order_of_its_parts(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """Two workers may both have written it, their parts mixed."""
    content, parts = tokenizer
    records = data.draw(st.permutations([*parts, *data.draw(st.lists(st.sampled_from(parts)))]))
    assert _log(records).tokenizer(sha256(content).hexdigest()) == content


@given(tokenizers(), st.data())
def test_a_tokenizer_with_a_missing_or_damaged_part_is_none(
    tokenizer: tuple[bytes, list[tuple[bytes, bytes]]], data: st.DataObject
) -> None:
    """So a worker that has the file writes it again; after that it is there."""
    content, parts = tokenizer
    digest = sha256(content).hexdigest()
    place = data.draw(st.integers(0, len(parts) - 1))
    key, value = parts[place]
    wrong = data.draw(st.sampled_from([value + b"x", value[:-1], bytes([value[0] ^ 1]) + value[1:]]))
    assert _log(parts[:place] + parts[place + 1 :]).tokenizer(digest) is None
    damaged = [*parts[:place], (key, wrong), *parts[place + 1 :]]
    assert _log(damaged).tokenizer(digest) in (None, content)  # zlib overlooks what follows its end
    assert _log([*damaged, *parts]).tokenizer(digest) == content


def test_parts_outside_their_count_are_left_alone() -> None:
    """They cannot be of this tokenizer."""
    key = f"tokenizer/{DIGEST}/5/2".encode()
    parts = list(tokenizer_parts(CONTENT))
    assert _log([(key, b""), *parts]).tokenizer(DIGEST) == CONTENT
    assert _log([(key, b""), (f"tokenizer/{DIGEST}/0/2".encode(), b"")]).tokenizer(DIGEST) is None


def test_parts_fit_into_a_topic_as_it_is_by_default() -> None:
    """1 MiB, with room for the record's frame."""
    content = b"".join(sha256(bytes([n % 256, n // 256])).digest() for n in range(60_000))
    parts = list(tokenizer_parts(content))
    assert max(len(value) for _, value in parts) <= (1 << 20) - (1 << 16)
    assert len(parts) > 1
    assert _log(parts).tokenizer(sha256(content).hexdigest()) == content


def test_skips_are_collected_by_partition() -> None:
    """Twice is once."""
    log = _log([skip_record(0, 5), skip_record(1, 5), skip_record(0, 9), skip_record(0, 5)])
    assert log.skips == {0: {5, 9}, 1: {5}}


def test_requests_are_not_in_force() -> None:
    """What a person asks for changes nothing until a mill has taken it over."""
    log = _log([skip_request_record(0, 5), skip_record(0, 9)])
    assert (log.skips, log.skip_requests) == ({0: {9}}, {0: {5}})
