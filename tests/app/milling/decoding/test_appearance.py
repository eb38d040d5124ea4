"""What begins like a JSON object or array, and what is full of control characters."""

import json
import re
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_values
from tokenmill.app.milling.decoding.appearance import JUDGED, check_characters, like_json
from tokenmill.errors import RecordError


@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", "{ int x; }", "{{ template }}", "{'a': 1}", " \t\r\n{", "\ufeff{", "\v\f{", "\ufeff \ufeff{"),
        *("[", "[]", "[ ]", "[ ] a task", "[[", "[[]", '["', '["a" is quoted]', "[{", "[[{x", "[\n  {"),
        *("[1]", "[1] a footnote", "[1, 2", "[-1.5e3 , x", "[12", "[1.", "[1e", "[-"),
        *("[true]", "[null ,", "[fal", "[t"),
    ],
)
def test_what_begins_like_json(text: str) -> None:
    """A brace; or brackets and then what a value begins with."""
    assert like_json(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a", "42", '"a"', "null", "<[]>", "(x)", "\\{", "# [1]"),
        *("[link](x)", "[x] done", "[INFO] started", "[package]", "[[bin]]", "[[wiki]]", "[ text ]", "[-x]", "[- a"),
        *("[2026-11-23 12:00] a log", "[12:00] a log", "[trueish]", "[nullable]", "[not", "[true story", "[1 a"),
    ],
)
def test_what_begins_like_text(text: str) -> None:
    """Links, log lines, tables of TOML: no JSON array begins so."""
    assert not like_json(text.encode())


@given(json_values, st.integers(0), st.sampled_from(["", "\ufeff", " \n"]))
def test_every_beginning_of_an_object_or_array_is_like_json(value: Any, length: int, before: str) -> None:
    """However short, with white space or without."""
    for spelled in (json.dumps(value), json.dumps(value, indent=1)):
        part = spelled.encode()[: 1 + length % len(spelled)]
        assert like_json(before.encode() + part) == (part[:1] in (b"{", b"["))


@given(
    st.lists(st.sampled_from(["[", " ", "{", '"', "1", "-", ".", "e", "a", "t", "true", ",", "]", "\ufeff"])).map(
        "".join
    )
)
def test_it_is_like_json_exactly_if_some_json_begins_so_or_it_has_a_brace(text: str) -> None:
    """As docs/record_to_tokens.md words it, step by step."""
    rest = re.sub(r"\A[\s\ufeff]*", "", text)
    expected = rest.startswith("{")
    if rest.startswith("["):
        inside = rest.lstrip("[ ")
        word = re.match(r"-?\d+(\.\d*)?([eE][+-]?\d*)?|true|false|null", inside)
        after = inside[word.end() :].lstrip() if word else "x"
        cut_off = inside in {"-", "t", "tr", "tru", "f", "fa", "fal", "fals", "n", "nu", "nul"}
        expected = inside[:1] in {"", "{", '"', "]"} or after[:1] in {"", ",", "]"} or cut_off
    assert like_json(text.encode()) == expected


@pytest.mark.parametrize(
    ("value", "odd"),
    [
        (b"", False),
        (b"\x01", True),
        (b"\x01abc", True),
        (b"\x01abcd", False),
        (b"\t\n\f\r", False),
        (b"a" * 10_000 + b"\0", True),
        (b"a" * JUDGED + b"\x01" * 10_000, False),
        (b"\x01" * 64 + b"a" * 10_000, True),
        (b"\x01" * 63 + b"a" * 10_000, False),
        (b"\x7f\x7f", False),
    ],
)
def test_control_characters_are_counted_at_the_beginning_and_nuls_everywhere(value: bytes, odd: bool) -> None:  # noqa: FBT001
    """A quarter of the first 256 bytes is too many, one NUL is."""
    with pytest.raises(RecordError, match=r"^control_characters: ") if odd else nullcontext():
        check_characters(value)
