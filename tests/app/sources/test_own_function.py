"""Somebody's function, and what it makes of rows."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.maps import shout, shout_all
from tokenmill.app.sources.own_function import Wrong, find_function, made_of_list
from tokenmill.errors import InputError


def made_of(function: Callable[[Any], Any], row: dict[str, Any]) -> Any:
    (made,) = made_of_list(lambda rows: [function(rows[0])], [pickle.dumps(row)])
    return made


def packed(texts: Sequence[str]) -> list[bytes]:
    rows = [{"text": text} for text in texts]
    return [pickle.dumps(json.dumps(row).encode() if number % 2 else row) for number, row in enumerate(rows)]


@given(st.lists(st.sampled_from(["x", "drop", "fail", "plain"])))
def test_a_list_is_what_its_rows_are(texts: list[str]) -> None:
    def all_of(rows: list[dict[str, Any]]) -> list[object]:
        return [shout(row) for row in rows]

    assert made_of_list(all_of, packed(texts)) == [made_of(shout, {"text": text}) for text in texts]


def test_a_panic_of_native_code_is_about_its_row() -> None:
    """Though it is no `Exception`: what a tokenizer raises that gives a text up; the other rows have their answers."""
    wrong = made_of(shout, {"text": "panic"})
    assert isinstance(wrong, Wrong)
    assert wrong.why.startswith("native code that the function calls panicked (pyo3_runtime.PanicException: ")
    one, panicked, other = made_of_list(shout_all, packed(["a", "panic", "b"]))
    assert (one, other) == ({"text": "A", "rows": 1}, {"text": "B", "rows": 1})
    assert panicked == wrong


def test_a_module_that_panics_is_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_panicking.py").write_text("from tests.app.sources.maps import shout\nshout({'text': 'panic'})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"--map own_panicking:f: .*panicked"):
        find_function("own_panicking:f")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_still_does(error: type[BaseException]) -> None:
    def raising(_: object) -> None:
        raise error

    with pytest.raises(error):
        made_of(raising, {})
    with pytest.raises(error):
        made_of_list(raising, packed("ab"))


def test_a_function_gets_all_rows_of_a_list_at_once() -> None:
    rows = [*packed(["a", "b", "c"]), pickle.dumps(b"[]")]
    *made, wrong = made_of_list(shout_all, rows)
    assert made == [{"text": text, "rows": 3} for text in "ABC"]
    assert wrong == Wrong("TypeError: not a JSON object")


@pytest.mark.parametrize(("text", "what"), [("less", "9 of them"), ("odd", "str")])
def test_a_list_of_another_length_is_refused(text: str, what: str) -> None:
    made = made_of_list(shout_all, packed(["x", text, *"xxxxxxxx"]))
    assert made == [Wrong(f"it was given a list of 10 and returned {what}, not a list of as many")] * 10


def test_an_answer_of_another_kind_is_refused() -> None:
    wrong = Wrong("it returned int, not a dict, a text or None")
    assert made_of(lambda _: 7, {}) == wrong
    assert made_of_list(lambda rows: ["a", 7, None][: len(rows)], packed("abc")) == ["a", wrong, None]
