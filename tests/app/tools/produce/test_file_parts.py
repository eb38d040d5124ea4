"""Large files in parts: together the items, numbers and ids of the whole file, wherever the parts end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.sources.reading import reading_of
from tests.app.tools.pack.packing import rows
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Reading, file_sources
from tokenmill.app.sources.file_sources import FileSource
from tokenmill.app.sources.formats import text
from tokenmill.app.sources.items import DocumentSource, ItemChunk, Place
from tokenmill.app.tools.produce import dask_lanes
from tokenmill.app.tools.produce.dask_lanes import FilePart, divided, may_be_divided, parts_of
from tokenmill.errors import InputError


def told(sources: Sequence[DocumentSource]) -> list[tuple[Any, ...]]:
    """Return all items with their places, those without an id with it, and what was left out."""
    chunks = [chunk for source in sources for chunk in source.chunks(Place())]
    found = [placed for chunk in chunks for placed in chunk.placed()]
    assert [where[1] for _, where in found] == [number for chunk in chunks for number in chunk.numbers]
    return [*found, (sum(chunk.unmet.documents for chunk in chunks),)]


def require_same(source: FileSource, least: int) -> int:
    """Fail unless the parts give what the file gives, from any chunk on; return how many there are."""
    bounds = parts_of(source, least)
    parts = divided([source], {source.path: bounds})
    assert told(parts) == told([source])
    assert sum(part.size for part in parts) <= source.size
    for part in parts:
        chunks = list(part.chunks(Place()))
        for number, chunk in enumerate(chunks[:-1], 1):
            assert [_plain(one) for one in part.chunks(chunk.after)] == [_plain(one) for one in chunks[number:]]
    return len(parts)


def _plain(chunk: ItemChunk) -> ItemChunk:
    return chunk._replace(bytes_read=0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for all examples."""
    return tmp_path_factory.mktemp("parts")


LINES = st.sampled_from(
    [b"", b"\r", b"no JSON", b'{"text": 7}', b'{"id": "a", "text": "b"}', b"x" * 280, '{"text": "Mühle"}'.encode()]
)
CELLS = st.sampled_from(["a", "Mühle", 'quo"te', "two\nlines", "", ",", "x" * 290])


@given(
    lines=st.lists(LINES, max_size=30), least=st.integers(1, 120), chunk=st.integers(1, 60), piece=st.integers(1, 99)
)
@example(lines=[b"x" * 280, b'{"text": "a"}', b"\r"], least=1, chunk=1, piece=1)
def test_parts_of_lines_are_the_lines(
    directory: Path, *, lines: list[bytes], least: int, chunk: int, piece: int
) -> None:
    """JSON lines, and lines of text, whose numbers are their ids."""
    path = directory / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sources, "CHUNK_BYTES", chunk)
        patch.setattr(text, "LOOK_BYTES", piece)
        patch.setattr(text, "BUFFER_BYTES", piece)
        for choice in ("jsonl", "lines"):
            require_same(FileSource(str(path), _small(choice)), least)


@given(
    cells=st.lists(st.tuples(CELLS, CELLS), max_size=20),
    least=st.integers(1, 120),
    chunk=st.integers(1, 60),
    ends=st.sampled_from(["\n", "\r\n"]),
    damage=st.sampled_from(["", 'a,"b', "a", '"a"b,c\nd,e\n', "\n\n"]),
)
def test_parts_of_a_table_are_its_rows(
    directory: Path, *, cells: list[tuple[str, str]], least: int, chunk: int, ends: str, damage: str
) -> None:
    """With line breaks and quotes in fields, rows that are too long or short, and an end that cannot be read."""
    path = directory / "a.csv"
    made = [["text", "id"], *cells]
    quoted = [",".join(['"' + cell.replace('"', '""') + '"' for cell in row]) for row in made]
    path.write_bytes(("\ufeff" + ends.join(quoted) + ends + damage).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_sources, "CHUNK_BYTES", chunk)
        require_same(FileSource(str(path), _small("auto")), least)


def _small(choice: Any) -> Reading:
    return reading_of(Settings(max_record_bytes=270, max_id_bytes=200), choice)


@pytest.mark.parametrize("options", [{}, {"metadata_fields": ("lang", "score"), "key": "score"}])
def test_parts_of_parquet_are_its_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    """Some row groups each; ids that are numbers of rows as well."""
    path = tmp_path / "a.parquet"
    made = [row | {"id": None if number % 3 else row["id"]} for number, row in enumerate(rows(60))]
    pq.write_table(pa.Table.from_pylist(made), path, row_group_size=7)
    source = FileSource(str(path), reading_of(**options))
    assert require_same(source, 1) > require_same(source, 3000) > 1


def test_small_files_and_those_without_places_are_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed ones, other formats, tables in other encodings; a damaged one is one part, and says so when read."""
    monkeypatch.setattr(dask_lanes, "PART_BYTES", 10)
    for name in ("a.jsonl.gz", "a.json", "a.warc", "a.txt", "a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(b"text\nsome\nlines\n" * 3)
    (tmp_path / "small.jsonl").write_bytes(b'{"text": 1}\n')
    (tmp_path / "utf-16.csv").write_text("text\n" + "a\n" * 50, "utf-16")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": 1}\n' * 9)
    sources = [FileSource(str(path), reading_of()) for path in sorted(tmp_path.iterdir())]
    large = {Path(source.path).name: source for source in sources if may_be_divided(source)}
    assert [*large] == ["a.csv", "a.jsonl", "a.parquet"]
    latin = replace(large["a.csv"], reading=reading_of(encoding="latin-1"))
    assert not may_be_divided(latin)
    counts = {name: len(parts_of(source, 10).bounds) for name, source in large.items()}
    assert counts == {"a.csv": 5, "a.jsonl": 9, "a.parquet": 0}


def test_a_part_is_known_by_its_bytes_and_refuses_another_file(tmp_path: Path) -> None:
    """A change elsewhere in the file is none of it, and the columns' names are; a file of another length is named."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,id\n" + b"".join(b"row %d,%d\n" % (number, number) for number in range(9)))
    source = FileSource(str(path), reading_of())
    parts = divided([source], {source.path: parts_of(source, 30)})
    assert len({part.name for part in parts}) == len(parts) > 2
    before = [part.signature() for part in parts]
    path.write_bytes(path.read_bytes().replace(b"row 8", b"ROW 8"))
    assert [part.signature() == old for part, old in zip(parts, before, strict=True)] == [True] * (len(parts) - 1) + [
        False
    ]
    path.write_bytes(path.read_bytes().replace(b"text,id", b"id,text"))
    assert [part.signature() == old for part, old in zip(parts, before, strict=True)] == [False] * len(parts)
    path.write_bytes(path.read_bytes() + b"more,10\n")
    assert isinstance(parts[0], FilePart)
    with pytest.raises(InputError, match=r"a\.csv has changed since the command began"):
        parts[0].signature()
    with pytest.raises(InputError, match=r"a\.csv has changed since the command began"):
        list(parts[1].chunks(Place()))
