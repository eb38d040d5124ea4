"""The directory that `demo` and `up` share."""

import json
from pathlib import Path

import pytest

from tokenmill.app.local.local_state import LocalState
from tokenmill.app.local.up import settings_in
from tokenmill.app.settings import Loaded, Settings, load_settings, load_with_origins
from tokenmill.errors import SettingsError

SAVED = Settings(
    raw_topics=("a", "b"), tokenizer='odd "name" \\ ü', splits={"train": 10, "test": 2}, shards=12, session_timeout=3.0
)


def test_settings_come_back(tmp_path: Path) -> None:
    """What was saved is what is read, by the state and by any command with --config."""
    state = LocalState(tmp_path)
    assert state.saved() is None
    state.save(SAVED)

    assert state.saved() == SAVED
    assert load_settings(config=state.settings_file) == SAVED


@pytest.mark.parametrize(
    "steps",
    [
        ["fineweb-2024"],
        [{"name": "gopher_quality", "min_doc_words": None}, {"name": "regex", "regex_exp": '"a\x7f", [b] = {c}'}],
        [{"name": "gopher_repetition", "top_n_grams": [[2, 0.5]]}, {"name": "words", "words": ["ü", "null"]}],
    ],
)
def test_steps_come_back(tmp_path: Path, steps: list[object]) -> None:
    """Tables in a list, and null, for which TOML has no word."""
    settings = load_settings({"steps": json.dumps(steps)})
    state = LocalState(tmp_path)
    state.save(settings)
    assert state.saved() == settings
    assert load_settings(config=state.settings_file) == settings


def test_each_name_is_new(tmp_path: Path) -> None:
    """Runs of the same text are told apart."""
    state = LocalState(tmp_path)

    assert [state.new_name(name) for name in ("stdlib", "stdlib", "notes")] == ["stdlib-1", "stdlib-2", "notes-1"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    """With what is wrong in it."""
    state = LocalState(tmp_path)
    state.settings_file.write_text("sequence_length = 0")

    with pytest.raises(SettingsError, match=r"tokenmill\.toml: .*sequence_length"):
        state.saved()


def test_up_prefers_what_is_said_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what was last time, then defaults that work without any settings."""
    monkeypatch.chdir(tmp_path)
    state = LocalState(tmp_path)
    nothing: Loaded = load_with_origins()
    assert (settings_in(state, nothing).tokenizer, settings_in(state, nothing).store) == ("bytes", state.store)

    state.save(SAVED)
    settings = settings_in(state, load_with_origins({"raw_topics": "c"}))

    assert settings.raw_topics == ("c",)
    assert (settings.tokenizer, settings.shards) == (SAVED.tokenizer, 12)
