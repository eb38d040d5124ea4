"""The description of a stream in a store."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.mills import RECIPE
from tests.segments.chains import make_info
from tokenmill.errors import DamagedError, StoreError
from tokenmill.genesis import Genesis
from tokenmill.segments import StreamInfo


def test_a_description_survives_its_file() -> None:
    """Canonical JSON and a newline; unknown fields are kept."""
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
    """A torn copy, for example."""
    with pytest.raises(DamagedError, match="tokenmill repair"):
        StreamInfo.decode(data)


def test_every_flipped_bit_of_a_description_is_noticed() -> None:
    """The genesis in it hashes to the fingerprint, and says all that stands beside it."""
    genesis = Genesis("raw-text.train", RECIPE, (0, 7), 16, {"numpy": "2"})
    data = StreamInfo.from_genesis(genesis, 16).encode()
    noticed = set()
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            StreamInfo.decode(bytes(flipped))
        except (DamagedError, StoreError):
            noticed.add(at // 8)
    unnoticed = bytes(data[at] for at in range(len(data)) if at not in noticed)
    assert len(unnoticed) < 4, unnoticed
