"""One era as it stands on a topic: spelled in one way, and nothing else is one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import FINGERPRINT, chains, next_era
from tokenmill.eras import Era, first_hash
from tokenmill.recipe import canonical_json


@given(chains())
def test_era_comes_back_as_it_was(eras: list[Era]) -> None:
    for era in eras:
        assert Era.unpack(era.pack()) == era
        assert len(era.hash) == 16


def test_spelling_is_that_of_the_page() -> None:
    """Canonical JSON; readers in other languages hash the same bytes."""
    era = next_era([], [2, 0, 1], closed=5)
    assert era.pack() == canonical_json(
        {
            "before": first_hash(FINGERPRINT).hex(),
            "closed": 5,
            "end": False,
            "era": 0,
            "ranges": [[0, n, a.hex(), b.hex()] for _, n, a, b in era.ranges],
        }
    )
    assert [part.blocks for part in era.ranges] == [2, 0, 1]
    assert era.blocks == 3


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_no_bytes_surprise_a_reader(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Era.unpack(value)


@pytest.mark.parametrize(
    "changed",
    [
        {"era": -1},
        {"era": True},
        {"era": 1.0},
        {"before": "ab"},
        {"closed": None},
        {"end": True},
        {"end": 0},
        {"ranges": []},
        {"ranges": "backwards"},
        {"ranges": "emptied"},
        {"ranges": "cut"},
        {"ranges": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_records_that_no_writer_writes_are_refused(changed: dict[str, object]) -> None:
    good = json.loads(next_era([], [2, 3]).pack())
    ways = {
        "backwards": [[2, 0, *good["ranges"][0][2:]], good["ranges"][1]],
        "emptied": [[2, 2, *good["ranges"][0][2:]], good["ranges"][1]],
        "cut": [good["ranges"][0][:3]],
    }
    changed = {name: ways.get(str(value), value) for name, value in changed.items()}
    assert Era.unpack(canonical_json(good)).number == 0
    with pytest.raises(ValueError, match="no era"):
        Era.unpack(canonical_json(good | changed))


def test_other_spelling_is_refused() -> None:
    """The hash is of the bytes, so one era has one spelling."""
    with pytest.raises(ValueError, match="no era"):
        Era.unpack(next_era([], [1]).pack() + b" ")


def test_streams_have_first_hashes_of_their_own() -> None:
    assert first_hash(b"a" * 32) != first_hash(b"b" * 32)
