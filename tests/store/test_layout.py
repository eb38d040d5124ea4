"""Names and paths in a store."""

from pathlib import Path

import pytest

from tokenmill.errors import StoreError
from tokenmill.store.layout import SegmentPaths, partition_directory, partition_numbers, segment_firsts


def test_a_segment_is_named_after_its_first_block() -> None:
    """Twelve digits sort like numbers in any listing."""
    paths = SegmentPaths(Path("/s/0"), 4096)
    assert paths.tokens == Path("/s/0/000000004096.bin")
    assert paths.manifest == Path("/s/0/000000004096.json")


def test_one_file_is_enough_to_find_a_segment() -> None:
    """A segment exists from its first file on; other names are none of the store's."""
    names = ["lock", "000000004096.docs", "000000000000.bin", "000000000000.json", "5.bin", "000000000000.json.tmp"]
    assert segment_firsts(names) == [0, 4096]


def test_partitions_are_found_by_number() -> None:
    """Files beside them are not."""
    assert partition_numbers(["stream.json", "10", "2", "02", "x"]) == [2, 10]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "x" * 250])
def test_a_stream_name_never_leads_elsewhere(name: str) -> None:
    """Only what a Kafka topic could be called becomes a directory."""
    with pytest.raises(StoreError, match="no stream name"):
        partition_directory(Path("/s"), name, 0)
