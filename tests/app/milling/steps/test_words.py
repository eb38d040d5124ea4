"""The steps that look for words of a list."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import opened, reason
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.milling.steps.words import Decontaminate, run_hashes
from tokenmill.documents import Document
from tokenmill.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a Bad word", True),
        ("badly, abad", False),
        ("worse than that", False),
        ("WORSE  than, all", True),
        ("worse than worse than all", True),
        ("(bad)", True),
        ("", False),
    ],
)
def test_one_word_or_phrase_is_enough(text: str, wanted: object) -> None:
    """In any spelling with capitals, with whatever punctuation."""
    step = opened("words", words=["bad", "Worse than all"])
    assert reason(step, text) == ("document_removed_with_badwords" if wanted else "")


def test_a_share_of_words_may_be_allowed() -> None:
    """All words of a phrase count."""
    step = opened("words", words=["bad", "very very bad"], max_share=0.5)
    assert reason(step, "bad good") == ""
    assert reason(step, "very very bad bad good good good") != ""
    answer = step(Document("very very bad good"))
    assert isinstance(answer, Rejected)
    assert answer.detail == "3 of 4 words are listed, the first is 'very very bad'"


def test_a_list_may_be_a_file(tmp_path: Path) -> None:
    """Its content is what is described, in whatever order it is written."""
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_bytes(b"bad\r\n# not this\r\n\r\nworse\r\n")
    other.write_text("worse\nbad\nbad\n")
    step = opened("words", words=str(one))
    assert reason(step, "worse") != ""
    assert reason(step, "this") == ""
    assert step.describe() == opened("words", words=str(other)).describe()
    assert step.describe() != opened("words", words=["bad", "worse"]).describe()


def test_lists_that_are_none_are_refused(tmp_path: Path) -> None:
    """Without a word, or with a sentence."""
    with pytest.raises(SettingsError, match=r"step 1 \(words\): words: it has no word"):
        opened("words", words=["--"])
    with pytest.raises(SettingsError, match="more than 8 words"):
        opened("words", words=["a b c d e f g h i"])
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "long.txt").write_text("a b c d e f g h i\n")
    for name, said in (("empty.txt", "it has no word"), ("long.txt", "'a b c d e f g h i' has more than 8 words")):
        path = str(tmp_path / name)
        with pytest.raises(SettingsError, match=rf"^step 1 \(words\): words: {re.escape(path)} cannot be used: {said}"):
            opened("words", words=path)


QUESTION = "How many loaves does the miller bake when each of his seven sons eats two of them a day"


def test_a_run_of_thirteen_words_is_enough(tmp_path: Path) -> None:
    """Whatever stands between the words, and around them."""
    (tmp_path / "evaluation.txt").write_text(f"{QUESTION}\nshort\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.txt"))
    words = QUESTION.upper().split()
    assert reason(step, f"before, {', '.join(words[3:16])}! After.") == "contaminated"
    assert reason(step, " ".join(words[:12])) == ""
    assert reason(step, " ".join([*words[:12], "and", *words[12:]])) == ""
    assert reason(step, "short") == ""


def test_texts_may_be_json_objects_and_some_matches_allowed(tmp_path: Path) -> None:
    """Each text in an object counts by itself."""
    value = {"question": "one two three", "choices": ["four five six", {"text": "seven eight nine"}], "answer": 2}
    (tmp_path / "evaluation.jsonl").write_text(json.dumps(value) + "\n{no json at all\n")
    step = opened("decontaminate", texts=str(tmp_path / "evaluation.jsonl"), n_grams=3, max_matches=1)
    assert reason(step, "four five six") == ""
    assert reason(step, "four five six. Seven eight nine") == "contaminated"
    assert reason(step, "two three four five") == ""
    assert reason(step, "no json at all, no json at") == "contaminated"


def test_only_hashes_travel(tmp_path: Path) -> None:
    """Eight bytes a run, each once, in order."""
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
    """The order of their words counts."""
    runs = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    hashes = run_hashes(words, size).tolist()
    assert len(hashes) == len(runs)
    assert len(set(hashes)) == len(set(runs)) == len(set(zip(hashes, runs, strict=True)))


def test_the_hash_stays_what_it_is() -> None:
    """It is what lies on control topics."""
    assert run_hashes(["the", "grain"], 2).tolist() == [15803083548537242265]
