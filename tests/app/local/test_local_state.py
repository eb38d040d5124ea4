"""The directory that `demo` and `up` share."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.app.local.local_state import PASSAGE_BYTES, DemoText, LocalState, own_text, standard_library
from tokenmill.app.local.up import settings_in
from tokenmill.app.settings import Settings, load_settings, load_with_origins
from tokenmill.app.sources import Item, shape_for
from tokenmill.errors import InputError, SettingsError

SAVED = Settings(
    raw_topics=("a", "b"), tokenizer='odd "name" \\ ü', splits={"train": 10, "test": 2}, shards=12, session_timeout=3.0
)


STEPS: list[Any] = [
    ["fineweb-2024"],
    [{"name": "gopher_quality", "min_doc_words": None}, {"name": "regex", "regex_exp": '"a\x7f", [b] = {c}'}],
    [{"name": "gopher_repetition", "top_n_grams": [[2, 0.5]]}, {"name": "words", "words": ["ü", "null"]}],
]
"""Tables in a list, and null, for which TOML has no word."""


@pytest.mark.parametrize("settings", [SAVED, *(load_settings({"steps": json.dumps(steps)}) for steps in STEPS)])
def test_settings_come_back(tmp_path: Path, settings: Settings) -> None:
    state = LocalState(tmp_path)
    assert state.saved() is None
    state.save(settings)
    assert state.saved() == load_settings(config=state.settings_file) == settings


def test_each_name_is_new(tmp_path: Path) -> None:
    state = LocalState(tmp_path)
    assert [state.new_name(name) for name in ("stdlib", "stdlib", "notes")] == ["stdlib-1", "stdlib-2", "notes-1"]


def test_a_broken_file_and_a_missing_text_are_named(tmp_path: Path) -> None:
    state = LocalState(tmp_path)
    state.settings_file.write_text("sequence_length = 0")
    with pytest.raises(SettingsError, match=r"tokenmill\.toml: .*sequence_length"):
        state.saved()
    with pytest.raises(InputError, match="--text"):
        own_text(tmp_path / "nothing")


def test_up_prefers_what_is_said_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = LocalState(tmp_path)
    nothing = settings_in(state, load_with_origins())
    assert (nothing.tokenizer, nothing.store) == ("bytes", state.store)
    state.save(SAVED)
    settings = settings_in(state, load_with_origins({"raw_topics": "c"}))
    assert settings.raw_topics == ("c",)
    assert (settings.tokenizer, settings.shards) == (SAVED.tokenizer, 12)


def items(text: DemoText) -> list[Item]:
    found = text.items(shape_for(Settings(), Settings().max_record_bytes))
    return [item for item in found if isinstance(item, Item)]


def name_of(item: Item) -> str:
    return str(json.loads(item.value)["id"])


def test_the_standard_library_is_there_on_every_machine() -> None:
    text = standard_library()
    first = items(text)
    assert text.bytes > 5_000_000
    names = [name_of(item) for item in first]
    assert {"asyncio/base_events.py", "pydoc_data/topics.py"} <= set(names)
    assert not any("site-packages" in name for name in names)
    assert items(standard_library()) == first


def test_a_single_text_becomes_passages(tmp_path: Path) -> None:
    book = tmp_path / "My Book!.txt"
    book.write_text("".join(f"paragraph {number}\n" * 40 + "\n" for number in range(100)))
    text = own_text(book)
    found = items(text)
    assert text.name == "my-book"
    assert "".join(item.text for item in found) == book.read_text()
    assert len(found) > 5
    assert all(len(item.text) >= PASSAGE_BYTES for item in found[:-1])
    assert name_of(found[1]) == f"My Book!.txt:{1 + found[0].text.count(chr(10))}"


def test_a_folder_is_read_as_produce_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}\n')
    (tmp_path / "b.txt").write_text("three")
    text = own_text(tmp_path)
    assert [item.text for item in items(text)] == ["one", "two", "three"]
    assert text.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
