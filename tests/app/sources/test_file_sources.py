"""Sources: files, folders, patterns, what each of them says of itself; and how large their chunks are."""

import asyncio
import bz2
import gzip
import json
import lzma
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.files import WRITERS, zstd
from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused, find_sources
from tokenmill.app.sources.conditions import Condition
from tokenmill.app.sources.file_sources import CHUNK_BYTES, Chunker, FileSource, read_items
from tokenmill.app.sources.formats import Choice
from tokenmill.app.sources.items import Bad, Entry, Place, Text, fit_id
from tokenmill.app.sources.mapping import Mapping
from tokenmill.app.tools.produce.sending import EXAMPLES, ReadingPlan, Summary, dry_run


def test_each_file_of_a_folder_is_a_document(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").write_text("no")
    (folder / "deep" / "z.py").write_text("print(1)\n")
    (folder / "a.md").write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe")
    (folder / "b.bin").write_bytes(b"\0\1")
    (folder / "c.txt").write_bytes(b"\xff\0\xfe")
    (folder / "d.txt").write_bytes(b"")
    (folder / "e.txt").symlink_to("nowhere")
    os.mkfifo(folder / "f.txt")
    found = found_in(reading_of(), folder)
    documents = [json.loads(item.value) for item in found if isinstance(item, Item)]
    assert documents == [
        {"id": str(folder / "a.md"), "text": "grüße"},
        {"id": str(folder / "deep" / "z.py"), "text": "print(1)\n"},
    ]
    assert refusals(found) == [
        ("b.bin", "not text: it holds NUL bytes"),
        ("c.txt", "not text: it holds NUL bytes"),
        ("e.txt", "cannot be read: a link to nowhere, which is not there"),
    ]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.tsv", "a.jsonl", "a.json", "a.jsonl.gz", "a.zip"])
@pytest.mark.cases(3)
def test_folders_are_columns(name: str, tmp_path: Path) -> None:
    """As Hive and Spark name them, in any format: for fields that go with the text, for conditions, and for ids.

    What a row has itself goes first. Nothing changes where nobody asks.
    """
    folder = tmp_path / "lang=en" / "na%3Dme=a%2Fb%20c" / "none=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    write = next(write for other, write in WRITERS.items() if other.partition(".")[2] == name.partition(".")[2])
    write(folder / name, [{"text": "one", "own": "x"}, {"text": "two", "own": "y"}])
    options: dict[str, Any] = {"metadata_fields": ["lang", "na=me", "none", "own"], "fields": ["text"]}
    found = [json.loads(value) for value in values(found_in(reading_of(**options), tmp_path))]
    assert [{**row, "id": ""} for row in found] == [
        {"id": "", "text": text, "lang": "en", "na=me": "a/b c", "own": own}
        for text, own in (("one", "x"), ("two", "y"))
    ]
    for condition, number in (("lang=en", 2), ("lang=de", 0), ("none=null", 2), ("own=x", 1)):
        assert len(values(found_in(reading_of(where=[Condition.parse(condition)]), tmp_path))) == number
    if "json" in name:
        assert json.loads(values(found_in(reading_of(), tmp_path))[0]) == {"text": "one", "own": "x"}
        settings = Settings(metadata_fields=("lang",))
        assert json.loads(values(found_in(reading_of(settings), tmp_path))[0]) == {"text": "one", "lang": "en"}
    with closing(Mapping("tests.app.sources.maps:shout", 1)) as mapping:
        mapped = found_in(reading_of(mapping=mapping, **options), tmp_path)
    assert [json.loads(value)["lang"] for value in values(mapped)] == ["en", "en"]


def test_a_row_has_its_own_value_rather_than_its_folders(tmp_path: Path) -> None:
    (tmp_path / "lang=en").mkdir()
    (tmp_path / "lang=en" / "lang=de.jsonl").write_text('{"text":"a","lang":"fr"}\n{"text":"b"}\n')
    found = found_in(reading_of(metadata_fields=["lang"]), tmp_path)
    assert values(found) == [b'{"text":"a","lang":"fr"}', b'{"text":"b","lang":"en"}']


def test_lines_can_be_documents_and_texts_can_go_plain(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\r\n\n \ntwo")
    assert values(found_in(reading_of(choice="lines"), path)) == [
        json.dumps({"id": f"{path}:{number}", "text": text}, separators=(",", ":")).encode()
        for number, text in ((1, "one"), (4, "two"))
    ]
    assert values(found_in(reading_of(choice="lines", plain=True), path)) == [b"one", b"two"]


def test_topics_that_decode_text_get_text(tmp_path: Path) -> None:
    """Where the mill would tokenize a JSON object as it stands, none is sent."""
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}')
    found = found_in(reading_of(Settings(decode="text")), tmp_path)
    assert values(found) == [b"one", b"two"]


def test_a_refusal_says_whether_it_is_of_a_row_and_which_limit_it_is_over(tmp_path: Path) -> None:
    long_id = '{"text": "a", "id": "' + "i" * 110 + '"}'
    lines = ['{"text": "' + "x" * 300 + '"}', '{"text": "y"}', long_id, "{}", "z" * 300]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.csv").write_text("text\n" + "x" * 140 + "\n" + "y" * 70 + "\n")
    (tmp_path / "c.txt:5").write_text("x" * 300)
    (tmp_path / "d.txt:6").write_bytes(b"\xff")
    (tmp_path / "e.txt:7").write_text("x" * 70)
    (tmp_path / "f.zip").write_text("none")
    (tmp_path / "g.txt").write_text('"' * 60)  # short enough, but not as JSON
    settings = Settings(max_record_bytes=150, max_text_bytes=64, max_id_bytes=100)
    found = found_in(reading_of(settings), tmp_path)
    assert values(found) == [b'{"text": "y"}']
    assert [(Path(one.where).name, one.row, one.limit) for one in found if isinstance(one, Refused)] == [
        ("a.jsonl:1", True, "max_record_bytes"),
        ("a.jsonl:3", True, "max_id_bytes"),
        ("a.jsonl:4", True, ""),
        ("a.jsonl:5", True, "max_record_bytes"),
        ("b.csv:2", True, "max_text_bytes"),
        ("b.csv:3", True, "max_text_bytes"),
        ("c.txt:5", False, "max_record_bytes"),
        ("d.txt:6", False, ""),
        ("e.txt:7", False, "max_text_bytes"),
        ("f.zip", False, ""),
        ("g.txt", False, "max_record_bytes"),
    ]


@given(name=st.text(), limit=st.integers(3, 40))
def test_ids_fit_and_keep_their_end(name: str, limit: int) -> None:
    found = fit_id(name, limit)
    assert len(json.dumps(found, ensure_ascii=False).encode()) - 2 <= limit or len(found) <= 1
    assert found == name or name.endswith(found.removeprefix("…"))


@pytest.mark.parametrize("name", [*WRITERS])
def test_every_format_goes_on_from_any_chunk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.sources.file_sources.CHUNK_ENTRIES", 7)
    rows = [{"id": f"n-{number}", "text": f"text é\n{number}"} for number in range(40)]
    WRITERS[name](tmp_path / name, rows)
    (source,) = find_sources([str(tmp_path / name)], reading_of())
    chunks = list(source.chunks(Place()))
    documents = [json.loads(item.value) for chunk in chunks for item in chunk.items if isinstance(item, Item)]
    assert documents == rows
    assert len(chunks) > 5
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for number, chunk in enumerate(chunks[:-1], 1):
        assert [c.items for c in source.chunks(chunk.after)] == [c.items for c in chunks[number:]]


def test_patterns_are_read_by_name(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/3.txt", "a/no.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = found_in(reading_of(plain=True), tmp_path / "**" / "*.txt")
    assert values(found) == [b"a/3.txt", b"b/1.txt", b"b/2.txt"]


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.slow
@pytest.mark.cases(2)
def test_a_file_that_is_cut_off_is_named_and_read_up_to_there(suffix: str, tmp_path: Path) -> None:
    lines = [json.dumps({"text": os.urandom(200).hex()}).encode() for _ in range(5000)]
    pack = {".gz": gzip.compress, ".zst": zstd.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
    whole = pack(b"\n".join(lines))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) // 2])
    found = found_in(reading_of(), path)
    there = values(found)
    assert 0 < len(there) < 5000
    assert there == lines[: len(there)]
    ((where, why),) = refusals(found)
    assert where == path.name
    assert "cannot be read to its end" in why
    assert found[-1].broken  # type: ignore[union-attr]


@given(
    lines=st.lists(st.text("ab\r ", max_size=4), max_size=8),
    more=st.lists(st.text("ab\r ", max_size=4), max_size=4),
    ended=st.booleans(),
    choice=st.sampled_from(["lines", "jsonl"]),
)
def test_the_parts_of_a_file_that_grew_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], more: list[str], *, ended: bool, choice: Choice
) -> None:
    before = "\n".join(lines).encode() + (b"\n" if ended else b"")
    added = ("" if ended else "\n").encode() + "\n".join(more).encode()
    path = tmp_path_factory.mktemp("grown") / ("a.jsonl" if choice == "jsonl" else "a.txt")
    path.write_bytes(before + added)
    (source,) = find_sources([str(path)], reading_of(choice=choice))
    assert isinstance(source, FileSource)
    first = read_items([source.part(0, 0, len(before))])
    second = read_items([source.part(before.count(b"\n"), len(before), len(before) + len(added))])
    assert [*first, *second] == list(read_items([source]))


def test_only_plain_files_of_lines_grow(tmp_path: Path) -> None:
    """Of anything else a part is the whole, and what is packed has no lines; names that say nothing decide nothing."""
    for name in ("a.jsonl", "a.txt", "a.jsonl.gz", "a.csv", "a.json"):
        (tmp_path / name).write_bytes(b'{"text": "one"}\n')
        source = FileSource(str(tmp_path / name), reading_of())
        assert source.grows == source.part(1, 2, 3).bounded == (name in {"a.jsonl", "a.txt"})


LINE_BYTES = 20_000


def size_of(items: Sequence[Item | Refused]) -> int:
    return sum(len(item.data if isinstance(item, Refused) else item.value) for item in items)


@pytest.fixture
def refused_lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes((b'{"x":"' + b"y" * (LINE_BYTES - 9) + b'"}\n') * 1500)
    return path


def test_refused_documents_take_no_more_memory_than_others(refused_lines: Path) -> None:
    (source,) = find_sources([str(refused_lines)], reading_of())
    sizes, peak = peak_of(
        lambda: [(size_of(chunk.items), chunk.size, len(chunk.items)) for chunk in source.chunks(Place())]
    )
    assert sum(count for _, _, count in sizes) == 1500
    assert all(held == told < CHUNK_BYTES + LINE_BYTES for held, told, _ in sizes)
    assert peak < 6 * CHUNK_BYTES


def test_what_is_remembered_of_refusals_is_told_and_not_kept(refused_lines: Path) -> None:
    sources = find_sources([str(refused_lines)], reading_of())
    summary = Summary("raw", {})
    for chunk in sources[0].chunks(Place()):
        for item in chunk.items:
            assert isinstance(item, Refused)
            summary.refuse(item)
    dry = asyncio.run(dry_run(sources, "raw", ReadingPlan(on_error="dead-letter")))
    assert dry.refused == summary.refused == 1500
    assert dry.examples == summary.examples
    assert len(summary.examples) == EXAMPLES
    assert size_of(summary.examples) == 0
    assert summary.examples[2].where == f"{refused_lines}:3"
    assert "no field 'text' or 'content'" in summary.examples[2].why


@given(contents=st.lists(st.sampled_from([Text(b"text"), Text(b"\xff"), Bad("bad", b"what stands there"), None])))
def test_the_size_of_what_is_left_is_told(contents: list[Text | Bad | None]) -> None:
    def entries(error: Exception | None) -> Iterator[Entry]:
        yield from ((number, 0, content) for number, content in enumerate(contents, 1))
        if error is not None:
            raise error

    for error in (None, OSError("damaged")):
        chunker = Chunker(reading_of().shape, "name", Place())
        with nullcontext() if error is None else pytest.raises(OSError, match="damaged"):
            assert [chunk.last for chunk in chunker.all(entries(error))] == [True]
        assert len(chunker.rest) == len([content for content in contents if content is not None])
        assert chunker.size == size_of(chunker.rest)
