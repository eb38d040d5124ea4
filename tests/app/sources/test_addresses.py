"""`hf://…`: what an address says."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sources.addresses import HubAddress
from tokenmill.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://imdb", HubAddress(("imdb",))),
        ("hf://wikitext/wikitext-103-v1?split=train", HubAddress(("wikitext", "wikitext-103-v1"), split="train")),
        ("hf://a/b/c", HubAddress(("a", "b", "c"))),
        ("hf://datasets/a/b?split=train", HubAddress(("a", "b"), split="train")),
        ("hf://datasets/x", HubAddress(("datasets", "x"))),
        ("hf:///data/set/?revision=1234567", HubAddress(("", "data", "set"), revision="1234567")),
        ("hf://a?name=20220301.en", HubAddress(("a",), name="20220301.en")),
        ("hf://a?split=train%5B%3A10%25%5D", HubAddress(("a",), split="train[:10%]")),
    ],
)
def test_an_address_names_a_data_set(text: str, expected: HubAddress) -> None:
    """And configuration, split and revision, which are texts whatever they look like."""
    assert HubAddress.parse(text) == expected


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("a=7", 7),
        ("a=-0.5e1", -5.0),
        ("a=true", True),
        ("a=null", None),
        ("a=True", "True"),
        ("a=en,de", ["en", "de"]),
        ("a=en&a=de&a=fr,it", ["en", "de", "fr", "it"]),
        ("a=1,2", [1, 2]),
        ("a=,", ","),
        ("a=%3B", ";"),
        ("a=;", ";"),
        ("a=x%2Cy", "x,y"),
        ("a=1+2", "1+2"),
        ("a=", ""),
        ('a="7"', "7"),
        ('a=["7",8]', ["7", 8]),
        ('a={"b":[1]}', {"b": [1]}),
        ("a=%227%22", "7"),
    ],
)
def test_arguments_have_types(query: str, value: Any) -> None:
    """Numbers, truth, lists, and anything as JSON."""
    found = HubAddress.parse(f"hf://name?{query}").arguments

    assert found == {"a": value}
    assert type(found["a"]) is type(value)


def test_names_of_files_are_never_numbers() -> None:
    """One, several, or by split."""
    assert HubAddress.parse("hf://json?data_files=7&data_dir=8").arguments == {"data_files": "7", "data_dir": "8"}
    assert HubAddress.parse("hf://json?data_files=7,true").arguments == {"data_files": ["7", "true"]}
    assert HubAddress.parse('hf://json?data_files={"a":"7"}').arguments == {"data_files": {"a": "7"}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hf://", "there is no name"),
        ("hf://?a=1", "there is no name"),
        ("hf://a?b", "'b' is no argument"),
        ("hf://a?", None),
        ("hf://a?b-c=1", "is no argument"),
        ("hf://a?split=b&split=c", "split= is given twice"),
        ('hf://a?b="c', "b= is no JSON"),
        ("hf://a?token=secret", "it would be in ids and logs; set HF_TOKEN"),
        ("hf://a?streaming=false", "always streamed"),
    ],
)
def test_what_is_no_address_says_why(text: str, why: str | None) -> None:
    """And how one is written."""
    if why is None:
        assert HubAddress.parse(text) == HubAddress(("a",))
    else:
        with pytest.raises(InputError, match=why):
            HubAddress.parse(text)


values = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=5), max_size=3)
keys = st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True).filter(
    lambda key: (
        key not in {"name", "split", "revision", "data_dir", "path", "streaming", "token", "data_files", "num_proc"}
    )
)


@given(arguments=st.dictionaries(keys, values, max_size=4), split=st.none() | st.text(min_size=1, max_size=9))
def test_any_argument_can_be_written(arguments: dict[str, Any], split: str | None) -> None:
    """As JSON, with percent escapes."""
    written = {key: json.dumps(value) for key, value in arguments.items()}
    written |= {} if split is None else {"split": split}
    query = "&".join(f"{key}={quote(value, safe='')}" for key, value in written.items())

    found = HubAddress.parse(f"hf://owner/name?{query}")

    assert (found.arguments, found.split, found.path) == (arguments, split, "owner/name")


@given(text=st.text(max_size=30) | st.text('hf:/?&=,%"[]{}1a', max_size=30))
def test_anything_is_an_address_or_an_error_of_ours(text: str) -> None:
    """Nothing else is raised."""
    with suppress(InputError):
        HubAddress.parse(text)
