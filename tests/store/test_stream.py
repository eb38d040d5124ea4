"""The description of a stream in a store."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.mills import RECIPE
from tests.store.chains import make_info
from tokenmill.errors import DamagedError, StoreError
from tokenmill.recipe import Genesis
from tokenmill.store import StreamInfo


def test_a_description_survives_its_file() -> None:
    info = StreamInfo.from_values({**make_info(dtype="uint32").values, "later": 1})
    again = StreamInfo.decode(info.encode())
    assert again == info
    assert (again.block_bytes, again.dtype.str, json.loads(info.encode())["later"]) == (20, "<u4", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"dtype": "float32"},
        {"fingerprint": "xyz"},
        {"fingerprint": 5},
        {"block_tokens": 0},
        {"segment_blocks": None},
    ],
)
def test_an_impossible_description_is_refused(change: Mapping[str, Any]) -> None:
    """A later format is told from damage."""
    with pytest.raises(StoreError if "format" in change else DamagedError):
        StreamInfo.from_values({**make_info().values, **change})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError, match="it is no"):
        StreamInfo.decode(data)


def test_a_flipped_bit_of_a_description_is_noticed_or_no_matter() -> None:
    """The genesis in it hashes to the fingerprint, and says again all that stands beside it."""
    genesis = Genesis("raw-text.train", RECIPE, (0, 7), 16, {"numpy": "2"})
    right = StreamInfo.from_genesis(genesis, 16)
    data, unnoticed = right.encode(), 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = StreamInfo.decode(bytes(flipped))
        except (DamagedError, StoreError):
            continue
        unnoticed += 1
        assert replace(found, values={}) == replace(right, values={})
        assert found.values["raw_topic"] == right.values["raw_topic"]
    assert unnoticed < len(data)  # in library versions, start offsets and the like, which readers do not use
