"""What begins like a JSON object or array, and what is full of control characters."""

import json
import struct
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import plain_rules
from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import json_bytes, json_objects, json_values
from tokenmill.app.milling.decoding.plain_values import JUDGED, check_characters, like_json
from tokenmill.documents import Document
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
    assert like_json(text.encode()) == plain_rules.like_json(text.encode())


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


AVRO = b"\0" + struct.pack(">I", 7) + b"\x00\x0a" + b"hello"
"""A record with an int and a string, as Confluent's Avro serializer writes it."""
CHANGE: dict[str, Any] = {
    "before": None,
    "after": {"id": 7, "title": "short", "body": "The text of the row."},
    "source": {"connector": "postgresql", "table": "pages"},
    "op": "c",
    "ts_ms": 1,
}


def detail(value: bytes) -> str:
    with pytest.raises(RecordError) as caught:
        opened("auto")(value)
    return caught.value.detail


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b" \n"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"42", "not_an_object"),
        (b"-0.5e3", "not_an_object"),
        (b"true", "not_an_object"),
        (b"null", "not_an_object"),
        (b"-Infinity", "not_an_object"),
        (b"1e999", "not_an_object"),
        (b"7" * 400, "not_an_object"),
        (b'"a text"', "not_an_object"),
        (json_bytes(json_bytes({"text": "a"}).decode()), "not_an_object"),
        (json_bytes(json_bytes([{"text": "a"}]).decode())[:-3], "not_an_object"),
        (b'"half \\ud800"', "invalid_unicode"),
    ],
)
def test_json_that_is_no_object_is_no_text_either(begin: bytes, value: bytes, reason: str) -> None:
    """It was encoded once more than it should; by rules 2 it is text, and a stream that has these keeps them."""
    assert answer(opened("auto"), begin + value + b"\n") == reason
    assert isinstance(answer(opened("auto", rules=2), begin + value + b"\n"), Document)
    assert isinstance(answer(opened("auto"), begin + value + b" or more"), Document) == ("{" not in value.decode())


@pytest.mark.parametrize("begin", ["", "\r\n\t ", "[\n  [", "\\u000A\\u0020"])
@pytest.mark.parametrize("quote", ['\\"', "\\u0022"])
def test_a_cut_off_object_in_a_string_is_none_however_it_is_indented(begin: str, quote: str) -> None:
    """By rules 3 it is text, and a stream that has these keeps them."""
    value = (
        json.dumps(f"{begin}{{\n  ")[:-1].replace("\\\\u", "\\u").encode()
        + f"{quote}text{quote}: {quote}It ra".encode()
    )
    assert answer(opened("auto"), value) == "not_an_object"
    assert isinstance(answer(opened("auto", rules=3), value), Document)


def test_by_earlier_rules_a_json_text_sequence_is_text() -> None:
    """Its objects are behind a record separator each."""
    assert isinstance(answer(opened("auto", rules=2), b'\x1e{"text": "a"}\n'), Document)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{", "malformed_json"),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", "malformed_json"),
        (b"{{ template }}", "malformed_json"),
        (b'\xef\xbb\xbf{"text": 5}', "wrong_type"),
        (b'{"text": 5, "content": "a"}', Document("a")),
        (b' \n{"text": "a", "id": "b"}', Document("a", "b")),
        (b'\x0b{"text": "a"}', "malformed_json"),
        (b"[]", "not_an_object"),
        (b"[1, 2", "malformed_json"),
        (b'{"a": "\\ud83d"}', "invalid_unicode"),
        (b'{"text": "a\\ud83d"', "malformed_json"),
        (json_bytes({"schema": {}, "payload": CHANGE}), "debezium_envelope"),
        (b"\0a", "control_characters"),
        (b"\x08\x96\x01\x12\x07testing", "invalid_utf8"),
        (b"42 is a number", Document("42 is a number")),
        (b'"a text", she said', Document('"a text", she said')),
        (b"\x1b[31mred\x1b[0m \t\r\n\f", Document("\x1b[31mred\x1b[0m \t\r\n\f")),
    ],
)
def test_each_value_is_what_people_would_expect(value: bytes, expected: Document | str) -> None:
    """Beside the table of bad inputs (`tests.bad_inputs`): JSON by its beginning, binary by its bytes, else text."""
    assert answer(opened("auto"), value) == expected


@pytest.mark.parametrize(
    ("value", "setting"),
    [
        (b"{ int x; }", 'decode = "text"'),
        (b'[{"text": "a"}]', 'decode = "text"'),
        (b'{"document": {"text": "a"}}', 'text_fields = "document.text"'),
        (json_bytes(CHANGE), 'text_fields = "after.body"'),
        (json_bytes({"schema": {}, "payload": CHANGE}), 'text_fields = "payload.after.body"'),
        (AVRO, 'set decode to "avro"'),
        (AVRO, "schema 7"),
        (b'\x1e{"text": "a"}\n\x1e{"text": "b"}\n', "text sequence"),
        (b"a\0b", 'decode = "text"'),
        (b"\1\2\3\4", "decode"),
        (b'{"text": ["a"]}', "text_fields"),
    ],
)
def test_the_dead_letter_names_the_setting_that_would_read_it(value: bytes, setting: str) -> None:
    assert setting in detail(value)


def test_the_setting_that_it_names_reads_it() -> None:
    assert answer(opened("text"), b"{ x }") == Document("{ x }")
    event = json_bytes({"schema": {}, "payload": CHANGE})
    assert answer(opened("auto", text_fields=("payload.after.body",)), event) == Document("The text of the row.")


def test_a_deleted_row_has_no_text_and_says_so() -> None:
    """With the path set, too: the event of a delete has no row after it."""
    event = json_bytes({"payload": CHANGE | {"op": "d", "before": CHANGE["after"], "after": None}})
    assert answer(opened("auto", text_fields=("payload.after.body",)), event) == "debezium_envelope"
    assert "delete" in detail(event)


def test_limits_hold_for_documents_and_for_plain_text() -> None:
    """A document over a limit is refused; it does not become plain text, and nobody is told to make it that."""
    decoder = opened("auto", max_text_bytes=20, max_id_bytes=3, max_fields_bytes=3, metadata_fields=("f",))
    for value, reason, setting in (
        (b'{"text": "a", "id": "long"}', "id_too_long", "max_id_bytes"),
        (b'{"text": "aaaaaaaaaaaaaaaaaaaaa"}', "too_large", "max_text_bytes"),
        (b'{"text": "a", "f": "long"}', "fields_too_long", "max_fields_bytes"),
    ):
        assert answer(decoder, value) == reason
        assert decoder.many([value]).refused[0][1].detail.endswith(f"({setting})")
    assert answer(decoder, b"a" * 21) == "too_large"


@given(json_objects, st.booleans())
def test_a_dead_letter_is_short_and_ascii(value: dict[str, Any], nested: bool) -> None:  # noqa: FBT001 - drawn
    data = json.dumps({"payload": CHANGE | {"after": value}} if nested else value).encode()
    _, refused = opened("auto").many([data])
    assert all(error.detail.isascii() and len(error.detail) < 1000 for _, error in refused)
