"""Parameters of steps: their types, and what is said where a value has another one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tokenmill import parameters as module
from tokenmill.errors import SettingsError
from tokenmill.parameters import MAX_ITEMS, MAX_TEXT, ListFile, canonical_lines, checked_values, parameters_of


@dataclass(frozen=True)
class _Kinds:
    text: str
    """What must
    be given."""
    count: int = 1
    share: float | None = 0.5
    """A share."""
    yes: bool = False
    words: tuple[str, ...] | ListFile = ()
    pairs: tuple[tuple[int, float], ...] = ()
    choice: Literal["a", "b"] = "a"
    _own: int = 0


def test_parameters_are_the_public_fields_with_their_descriptions() -> None:
    found = {parameter.name: parameter for parameter in parameters_of(_Kinds)}
    assert list(found) == ["text", "count", "share", "yes", "words", "pairs", "choice"]
    assert found["text"].description == "What must be given."
    assert found["text"].required
    assert (found["share"].default, found["share"].kind_in_words) == (0.5, "a number")
    assert found["words"].kind_in_words == "a list, each a text or the path of a file"
    assert found["pairs"].kind_in_words == "a list, each [a whole number, a number]"
    assert found["choice"].kind_in_words == '"a" or "b"'


def test_values_come_in_the_types_of_their_fields() -> None:
    given = {"text": "x", "share": 1, "words": ["a"], "pairs": [[2, 1]], "choice": "b"}
    found = checked_values(_Kinds, given, "step 1")
    assert found == {"text": "x", "share": 1.0, "words": ("a",), "pairs": ((2, 1.0),), "choice": "b"}
    assert type(found["share"]) is float
    assert checked_values(_Kinds, {"text": "x", "words": "a.txt", "share": None}, "")["words"] == "a.txt"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "text is missing; it is a text"),
        ({"text": 3}, "text = 3: it must be a text"),
        ({"text": "x" * (MAX_TEXT + 1)}, f"it is longer than {MAX_TEXT:,} characters"),
        ({"text": "x", "count": True}, "count = True: it must be a whole number"),
        ({"text": "x", "count": 1.5}, "count = 1.5: it must be a whole number"),
        ({"text": "x", "count": None}, "count = None: it must be a whole number"),
        ({"text": "x", "share": float("nan")}, "share = nan: it must be a number"),
        ({"text": "x", "yes": 1}, "yes = 1: it must be true or false"),
        ({"text": "x", "words": ""}, "words = '': it must be a list, each a text or the path of a file"),
        ({"text": "x", "words": [1]}, r"words = \[1\]: it must be a list"),
        ({"text": "x", "words": ["a"] * (MAX_ITEMS + 1)}, "more than 1,024 items, so put them into a file"),
        ({"text": "x", "pairs": [[1]]}, "pairs = "),
        ({"text": "x", "choice": "c"}, 'choice = \'c\': it must be "a" or "b"'),
        ({"text": "x", "cuont": 1}, r"unknown parameter cuont \(did you mean count\?\); it has text, count, share"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_does(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=f"^step 7: .*{said}"):
        checked_values(_Kinds, given, "step 7")


def test_entries_are_lines_in_order_and_each_once() -> None:
    content = canonical_lines("\ufeffb\r\n\r\n # no\n  a\u2028c \nb\n".encode())
    assert content == "a\u2028c\nb\n".encode()
    assert ListFile.of(content).lines() == ["a\u2028c", "b"]
    assert canonical_lines(content) == content
    assert ListFile.of(b"").lines() == []


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^step 2 \(words\): words: cannot read .*nowhere: No such file"):
        module.read_list_file(str(tmp_path / "nowhere"), "step 2 (words): words")
    with pytest.raises(SettingsError, match=r"cannot read .*: Is a directory"):
        module.read_list_file(str(tmp_path), "x")
    monkeypatch.setattr(module, "MAX_LIST_BYTES", 1 << 20)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (1 << 20))
    assert len(module.read_list_file(str(large), "x")) == 1 << 20
    large.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(SettingsError, match=r"^x: .*large is larger than 1 MiB, the most that a list may have"):
        module.read_list_file(str(large), "x")
