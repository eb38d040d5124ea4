"""The demo's text: the standard library, or one's own."""

import json
from pathlib import Path

import pytest

from tokenmill.app.local.demo_plan import PASSAGE_BYTES, DemoText, own_text, standard_library
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, shape_for
from tokenmill.errors import InputError


def items(text: DemoText) -> list[Item]:
    """Return the documents of a text."""
    found = text.items(shape_for(Settings(), Settings().max_record_bytes))
    return [item for item in found if isinstance(item, Item)]


def name_of(item: Item) -> str:
    """Return a document's id."""
    return str(json.loads(item.value)["id"])


def test_the_standard_library_is_there_on_every_machine() -> None:
    """Megabytes of sources, in the same order each time, called by their names in the library."""
    text = standard_library()
    first = items(text)

    assert text.bytes > 5_000_000
    names = [name_of(item) for item in first]
    assert {"asyncio/base_events.py", "pydoc_data/topics.py"} <= set(names)
    assert not any("site-packages" in name for name in names)
    assert items(standard_library()) == first


def test_a_single_text_becomes_passages(tmp_path: Path) -> None:
    """Cut at blank lines, each with the line it begins at, and nothing is lost."""
    paragraphs = [f"paragraph {number}\n" * 40 + "\n" for number in range(100)]
    book = tmp_path / "My Book!.txt"
    book.write_text("".join(paragraphs))

    text = own_text(book)
    found = items(text)

    assert text.name == "my-book"
    assert "".join(item.text for item in found) == book.read_text()
    assert len(found) > 5
    assert all(len(item.text) >= PASSAGE_BYTES for item in found[:-1])
    assert name_of(found[1]) == f"My Book!.txt:{1 + found[0].text.count(chr(10))}"


def test_a_folder_is_read_as_produce_reads_it(tmp_path: Path) -> None:
    """JSON lines are documents, other files are one each."""
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n')
    (tmp_path / "b.txt").write_text("three")

    text = own_text(tmp_path)

    assert [item.text for item in items(text)] == ["one", "two", "three"]
    assert text.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_no_text_is_told(tmp_path: Path) -> None:
    """Before anything is started."""
    with pytest.raises(InputError, match="--text"):
        own_text(tmp_path / "nothing")
