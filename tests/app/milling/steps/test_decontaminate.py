"""Texts of evaluation sets."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import opened, reason
from tokenmill.app.milling.steps.decontaminate import Decontaminate, run_hashes
from tokenmill.errors import SettingsError

QUESTION = "How many loaves does the miller bake when each of his seven sons eats two of them a day"


def test_a_run_of_thirteen_words_is_enough(tmp_path: Path) -> None:
    (tmp_path / "evaluation.txt").write_text(f"{QUESTION}\nshort\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.txt"))
    words = QUESTION.upper().split()
    assert reason(step, f"before, {', '.join(words[3:16])}! After.") == "contaminated"
    assert reason(step, " ".join(words[:12])) == ""
    assert reason(step, " ".join([*words[:12], "and", *words[12:]])) == ""
    assert reason(step, "short") == ""


def test_texts_may_be_json_objects_and_some_matches_allowed(tmp_path: Path) -> None:
    value = {"question": "one two three", "choices": ["four five six", {"text": "seven eight nine"}], "answer": 2}
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(value) + "\n{no json at all\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.jsonl"), n_grams=3, max_matches=1)
    assert reason(step, "four five six") == ""
    assert reason(step, "four five six. Seven eight nine") == "contaminated"
    assert reason(step, "two three four five") == ""
    assert reason(step, "no json at all, no json at") == "contaminated"


def test_only_hashes_travel(tmp_path: Path) -> None:
    made = Decontaminate.list_form(b"a b c\na b c d\n", {"n_grams": 3})
    assert len(made) == 16
    assert list(np.frombuffer(made, "<u8")) == sorted(np.frombuffer(made, "<u8"))
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(SettingsError, match=r"texts: .*short.txt cannot be used: no text has 13 words"):
        opened("decontaminate", texts=str(tmp_path / "short.txt"))
    with pytest.raises(SettingsError, match="n_grams = 0"):
        opened("decontaminate", texts=str(tmp_path / "short.txt"), n_grams=0)


@given(st.lists(st.sampled_from(["a", "b", "é"]), max_size=12), st.integers(1, 4))
def test_equal_runs_have_equal_hashes_and_others_have_others(words: list[str], size: int) -> None:
    runs = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    hashes = run_hashes(words, size).tolist()
    assert len(hashes) == len(runs)
    assert len(set(hashes)) == len(set(runs)) == len(set(zip(hashes, runs, strict=True)))


def test_the_hash_stays_what_it_is() -> None:
    """It is what lies on control topics."""
    assert run_hashes(["the", "grain"], 2).tolist() == [15803083548537242265]
