"""Words of a list."""

import re
from pathlib import Path

import pytest

from tests.app.milling.steps.curated import opened, reason
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
    step = opened("words", words=["bad", "Worse than all"])
    assert reason(step, text) == ("document_removed_with_badwords" if wanted else "")


def test_a_share_of_words_may_be_allowed() -> None:
    step = opened("words", words=["bad", "very very bad"], max_share=0.5)
    assert reason(step, "bad good") == ""
    assert reason(step, "very very bad bad good good good") != ""


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
