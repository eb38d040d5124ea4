"""Chunks: how large they are, whatever is in them."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.tools.produce.reading import reading_of
from tokenmill.app.tools.produce import Item, Refused, Summary, dry_run, find_sources
from tokenmill.app.tools.produce.chunks import CHUNK_BYTES, Chunker
from tokenmill.app.tools.produce.formats import Bad, Entry, Text
from tokenmill.app.tools.produce.items import Place
from tokenmill.app.tools.produce.summary import EXAMPLES

LINE_BYTES = 20_000


def size_of(items: Sequence[Item | Refused]) -> int:
    """Return the bytes that items hold."""
    return sum(len(item.data if isinstance(item, Refused) else item.value) for item in items)


@pytest.fixture
def refused_lines(tmp_path: Path) -> Path:
    """30 MB of lines without a text."""
    path = tmp_path / "a.jsonl"
    path.write_bytes((b'{"x":"' + b"y" * (LINE_BYTES - 9) + b'"}\n') * 1500)
    return path


def test_refused_documents_take_no_more_memory_than_others(refused_lines: Path) -> None:
    """Chunks of them end where chunks of documents would, so a file of them is never in memory as a whole."""
    (source,) = find_sources([str(refused_lines)], reading_of())
    tracemalloc.start()
    try:
        sizes = [(size_of(chunk.items), chunk.size, len(chunk.items)) for chunk in source.chunks(Place())]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sum(count for _, _, count in sizes) == 1500
    assert all(held == told < CHUNK_BYTES + LINE_BYTES for held, told, _ in sizes)
    assert peak < 6 * CHUNK_BYTES


def test_what_is_remembered_of_refusals_is_told_and_not_kept(refused_lines: Path) -> None:
    """A run's examples, and those of a dry one, say where and why; the documents themselves are gone."""
    sources = find_sources([str(refused_lines)], reading_of())
    summary = Summary("raw", {})
    for chunk in sources[0].chunks(Place()):
        for item in chunk.items:
            assert isinstance(item, Refused)
            summary.refuse(item)

    dry = dry_run(sources, "raw")

    assert dry.refused == summary.refused == 1500
    assert dry.examples == summary.examples
    assert len(summary.examples) == EXAMPLES
    assert size_of(summary.examples) == 0
    assert summary.examples[2].where == f"{refused_lines}:3"
    assert "no field 'text' or 'content'" in summary.examples[2].why


@given(contents=st.lists(st.sampled_from([Text(b"text"), Text(b"\xff"), Bad("bad", b"what stands there"), None])))
def test_the_size_of_what_is_left_is_told(contents: list[Text | Bad | None]) -> None:
    """What comes behind the last full chunk counts as well, and so it does when reading fails."""

    def entries(error: Exception | None) -> Iterator[Entry]:
        yield from ((number, 0, content) for number, content in enumerate(contents, 1))
        if error is not None:
            raise error

    for error in (None, OSError("damaged")):
        chunker = Chunker(reading_of().shape, "name", Place())
        with nullcontext() if error is None else pytest.raises(OSError, match="damaged"):
            assert list(chunker.chunks(entries(error))) == []
        assert len(chunker.rest) == len([content for content in contents if content is not None])
        assert chunker.size == size_of(chunker.rest)
