"""Sources of packs: files in parts, and what is no file on this machine, as one reader has it."""

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.sources.files import as_lines, write_parquet
from tests.app.sources.formats.test_warc import page
from tests.app.sources.reading import found_in, reading_of
from tests.app.sources.test_sql import QUERY, change, database
from tests.app.sources.web import Web, serving
from tests.app.tools.pack.packing import content, opened, pack_into, plan_of, require_equal, rows, small_settings
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, Item, Reading, Refused, find_sources, read_items
from tokenmill.app.sources import file_sources as source_module
from tokenmill.app.sources.file_sources import FileSource
from tokenmill.app.sources.formats.columnar import row_groups
from tokenmill.app.sources.items import FileSlice, ItemChunk, Place, with_end
from tokenmill.app.sources.sql import SqlSource
from tokenmill.app.tools.pack import parted_sources
from tokenmill.app.tools.pack.mill_processes import batch_of, records_of
from tokenmill.app.tools.pack.pack_verification import verify_pack
from tokenmill.app.tools.pack.packing_run import PackSummary, pack
from tokenmill.app.tools.pack.parted_sources import PartedSource, parted, read_slices, scan
from tokenmill.app.tools.verify.sides import ReferenceSample
from tokenmill.errors import InputError, SourceError

POOL = ThreadPoolExecutor(1)


def divided(source: FileSource, reading: Reading) -> PartedSource:
    found = parted(source, lambda part: POOL.submit(scan, part, reading), 2)
    assert isinstance(found, PartedSource)
    return found


def plain(chunk: ItemChunk) -> tuple[Any, ...]:
    """Return a chunk with the bytes of its values, as they are and with their places as ids, and without texts."""
    items: list[Item | Refused] = []
    named = (item for item, _ in chunk.placed())
    for item in (*chunk.items, *named):
        if isinstance(item, Item):
            (record,) = records_of(batch_of(0, 0, [item]))
            items.append(item._replace(value=record.value or b"", text=""))
        else:
            items.append(item)
    return items, chunk.after, chunk.size, chunk.last, chunk.unmet, list(chunk.numbers), chunk.name


def require_same(path: Path, reading: Reading) -> int:
    """Fail unless the parts give the chunks that the whole file gives, from the end of each on; return how many."""
    whole = FileSource(str(path), reading)
    parts = divided(whole, reading)
    chunks = [plain(chunk) for chunk in whole.chunks(Place())]
    assert [plain(chunk) for chunk in parts.chunks(Place())] == chunks
    for number, chunk in enumerate(chunks[:-1], 1):
        assert [plain(one) for one in parts.chunks(chunk[1])] == chunks[number:]
    return len(chunks)


LINES = st.one_of(
    st.sampled_from([b"", b" ", b"\r", b"no JSON", b'{"text": 7}', b'{"id": 1.5, "text": "b"}', b"x" * 280, b"[]"]),
    st.text("aé\\", max_size=30).map(lambda text: b'{"text": "%s"}' % text.encode().replace(b"\\", b"")),
    st.tuples(st.integers(0, 9), st.text("ab", max_size=5)).map(
        lambda pair: b'{"id": %d, "text": "%s", "lang": "%s"}' % (pair[0], pair[1].encode(), pair[1][:1].encode())
    ),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@given(
    lines=st.lists(LINES, max_size=30),
    ends=st.booleans(),
    part=st.integers(1, 60),
    chunk=st.integers(1, 120),
    keyed=st.booleans(),
)
@example(lines=[b"x" * 280, b'{"text": "a"}', b"\r"], ends=False, part=1, chunk=1, keyed=False)
def test_lines_in_parts_are_the_lines_of_the_file(
    directory: Path, *, lines: list[bytes], ends: bool, part: int, chunk: int, keyed: bool
) -> None:
    path = directory / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
    options: dict[str, Any] = {"key": "lang"} if keyed else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parted_sources, "LEAST_BYTES", 0)
        patch.setattr(parted_sources, "PART_BYTES", part)
        patch.setattr(source_module, "CHUNK_BYTES", chunk)
        require_same(path, reading_of(Settings(max_record_bytes=260, max_id_bytes=200), **options))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"where": ()}, {"metadata_fields": ("lang", "score"), "key": "score"}])
def test_row_groups_are_all_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 0)
    monkeypatch.setattr(source_module, "CHUNK_BYTES", 500)
    path = tmp_path / "a.parquet"
    write_parquet(path, [row | {"id": None if number % 3 else row["id"]} for number, row in enumerate(rows(60))])
    assert require_same(path, reading_of(**options)) > 10


def test_damaged_row_groups_lose_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 0)
    table = pa.table({"id": [f"n{n}" for n in range(4000)], "text": [f"text {n}" for n in range(4000)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=500, compression="gzip")
    groups, data = row_groups(str(path)), bytearray(path.read_bytes())
    for number in (1, 4):
        begin = groups[number].begin
        data[begin + 60 : begin + 90] = bytes(30)
    path.write_bytes(data)
    require_same(path, reading_of())
    found = found_in(reading_of(), path)
    refused = [(one.why.partition(" (")[2], one.broken) for one in found if isinstance(one, Refused)]
    assert len(found) - len(refused) == 3000
    assert refused == [("rows 501 to 1,000 are lost)", True), ("rows 2,001 to 2,500 are lost)", False)]


def test_what_cannot_be_divided_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "small.jsonl").write_bytes(b'{"text": "a"}\n')
    (tmp_path / "large.jsonl.gz").write_bytes(os.urandom(parted_sources.LEAST_BYTES))
    (tmp_path / "large.csv").write_bytes(b"text\n" + b"a\n" * parted_sources.LEAST_BYTES)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" * parted_sources.LEAST_BYTES)
    sources = [FileSource(str(path), reading_of()) for path in sorted(tmp_path.iterdir())]
    assert [parted(source, lambda part: POOL.submit(scan, part, reading_of()), 2) for source in sources] == sources


def test_a_part_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 9000)
    parts = divided(FileSource(str(path), reading_of()), reading_of())
    path.unlink()
    (chunk,) = parts.chunks(Place())
    assert chunk.last
    assert [item.why for item in chunk.items if isinstance(item, Refused)] == [
        "cannot be read: No such file or directory"
    ]


@given(data=st.data())
def test_slices_are_read_whether_they_are_dense_or_sparse(directory: Path, data: st.DataObject) -> None:
    content = bytes(range(256)) * 40
    path = directory / "slices"
    path.write_bytes(content)
    bounds = sorted(data.draw(st.lists(st.integers(0, len(content)), min_size=2, max_size=20)))
    wanted, items = [], []
    for begin, end in data.draw(st.permutations([*zip(bounds[::2], bounds[1::2], strict=False)])):
        ending = data.draw(st.sampled_from([b"", b',"id":"a"}']))
        whole = with_end(content[begin:end], ending) if ending else content[begin:end]
        own: Any = whole if data.draw(st.booleans()) else FileSlice(str(path), "", begin, end - begin, ending)
        items.append(Item(own, ""))
        wanted.append(whole)

    records = records_of(batch_of(3, 7, items))

    assert [(record.offset, record.value) for record in records] == list(enumerate(wanted, 7))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_no_part_is_read_of_what_replaces_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """A link out of the folder would put into the store what was never meant to be there; whenever it is put there."""
    monkeypatch.setattr(parted_sources, "LEAST_BYTES", 0)
    reading, outside, file = reading_of(), tmp_path / "secret", tmp_path / "folder" / f"a.{suffix}"
    file.parent.mkdir()
    for path in (file, outside):
        path.write_bytes(b'{"text": "S3cret"}\n' * 10)
        if suffix == "parquet":
            pq.write_table(pa.table({"text": ["S3cret"] * 10}), path, row_group_size=5)
    (source,) = find_sources([str(file.parent)], reading)
    assert isinstance(source, FileSource)
    parts = divided(source, reading)
    (before,) = parts.chunks(Place())
    file.unlink()
    file.symlink_to(outside)

    (refused,) = [item for chunk in parts.chunks(Place()) for item in chunk.items]
    assert isinstance(refused, Refused)
    assert "something was put in its place" in refused.why
    documents = [item for item in before.items if isinstance(item, Item)]
    assert len(documents) == 10
    if suffix == "jsonl":
        with pytest.raises(SourceError, match="something was put in its place"):
            records_of(batch_of(0, 0, documents))


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    """It is no end of the process: the same command goes on once the file is back."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"short")
    with pytest.raises(SourceError, match="shorter than it was"):
        read_slices((str(path), ""), [3], [10])
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read any more"):
        read_slices((str(path), ""), [3], [10])


PAGE = "<html><head><title>no</title></head><body><nav>Home</nav><article><p>{}</p></article></body></html>"
PAGES = [row["text"] for row in rows(40, 3, words=80)]


class Scene:
    """Documents of a server, a database and an archive, and files of the same ones."""

    def __init__(self, folder: Path, web: Web) -> None:
        self.settings, self.other = (small_settings(folder / name) for name in ("store", "other"))
        self.how = replace(opened(self.settings, [])[0], extract=True)
        self._web = web
        self.database, self._archive = folder / "pages.db", folder / "c.warc"
        self._url = database(self.database, 60)
        self._archive.write_bytes(b"".join(page("text/html; charset=utf-8", PAGE.format(text)) for text in PAGES))
        self.local = folder / "local"
        self.local.mkdir()
        for number, source in enumerate(self.sources()):
            values = [item.value for item in read_items([source]) if isinstance(item, Item)]
            (self.local / f"{number}.jsonl").write_bytes(b"\n".join(values) + b"\n")

    def sources(self) -> list[DocumentSource]:
        remote = find_sources([f"{self._web.address}/a.jsonl"], self.how)
        return [*remote, SqlSource(self._url, QUERY, self.how), *find_sources([str(self._archive)], self.how)]

    def packed(self, **plan: Any) -> PackSummary:
        return asyncio.run(pack(self.settings, self.sources(), self.how, plan_of(self.settings, ["them"], **plan)))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with serving(Web({"a.jsonl": as_lines(rows(80, 1))})) as web:
        yield Scene(tmp_path, web)


@pytest.mark.slow
def test_packed_is_what_files_of_the_same_documents_give(scene: Scene) -> None:
    texts = [json.loads(line)["text"] for line in (scene.local / "2.jsonl").read_bytes().splitlines()]
    assert texts == PAGES
    assert scene.packed(flush=True).documents == 180
    assert pack_into(scene.other, sorted(scene.local.iterdir()), flush=True).documents == 180
    require_equal(content(scene.settings.store), content(scene.other.store))


@pytest.mark.needs("minutes")
def test_a_pack_goes_on_in_what_is_no_file_and_refuses_what_changed(scene: Scene) -> None:
    assert scene.packed(limit=100).documents == 100
    statement = "UPDATE pages SET body = '{}' WHERE number = 59"
    change(scene.database, statement.format("other"))
    with pytest.raises(InputError, match=r"pages\.db has changed"):
        scene.packed()
    change(scene.database, statement.format("página 59"))
    rest = scene.packed(flush=True)
    assert (rest.before, rest.documents) == (100, 80)
    plan = plan_of(scene.settings, ["them"], flush=True)
    found = asyncio.run(verify_pack(scene.settings, scene.sources(), scene.how, plan, sample=ReferenceSample(1)))
    assert (found.ok, found.store_blocks > 100) == (True, True)
    pack_into(scene.other, sorted(scene.local.iterdir()), flush=True)
    require_equal(content(scene.settings.store), content(scene.other.store))
