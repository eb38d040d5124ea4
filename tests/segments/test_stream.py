"""The description of a stream in a store."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.segments.chains import make_info
from tokenmill.errors import StoreError
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
    """Each with the class of error that says that the store is at fault."""
    with pytest.raises(StoreError):
        StreamInfo.from_values({**make_info().values, **change})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    """A torn copy, for example."""
    with pytest.raises(StoreError, match=r"copy it again|format"):
        StreamInfo.decode(data)
