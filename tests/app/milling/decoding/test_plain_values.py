"""Modes ``text``, ``json`` and ``auto``: what they take, and the reason for each thing that they do not."""

import json
import resource
import struct
import time
from contextlib import nullcontext
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import plain_rules
from tests.app.milling.decoding.opened import answer, opened
from tests.plain_rules import ABSENT, PlainRules
from tests.strategies import json_bytes, json_objects, json_values
from tokenmill.app.milling.decoding.plain_values import JUDGED, check_characters, find_field, like_json, without_text
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.app.sources.conditions import finder
from tokenmill.documents import Document
from tokenmill.errors import RecordError

AVRO = b"\0" + struct.pack(">I", 7) + b"\x00\x0a" + b"hello"
"""A record with an int and a string, as Confluent's Avro serializer writes it."""
CHANGE: dict[str, Any] = {
    "before": None,
    "after": {"id": 7, "title": "short", "body": "The text of the row."},
    "source": {"connector": "postgresql", "table": "pages"},
    "op": "c",
    "ts_ms": 1,
}


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ('{"é": "x", "n": NaN}', "NaN at byte 17 is no JSON value: let the producer write null, or a string"),
        ('{"n": [-Infinity]}', "-Infinity at byte 7 is no JSON value: let the producer write null, or a string"),
        ('{"n": None}', "None at byte 6 is no JSON value: let the producer write null, or a string"),
        ('{"é": "x", "n": 1,}', "no JSON from byte 18 on: "),
        ('{"text": "a', "no JSON from byte 11 on: "),
    ],
)
def test_a_refusal_says_where_json_ends(value: str, detail: str) -> None:
    with pytest.raises(RecordError) as told:
        opened("json")(value.encode())
    assert told.value.detail.startswith(detail)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("json", b'{"text": "a", "other": "\\udfff"}', "invalid_unicode"),
        ("json", b'{"text": "a", "b": ' + b"[" * 1024 + b"]" * 1024 + b"}", "too_deep"),
        ("json", b"null", "not_an_object"),
        ("json", b'{"body": "a"}', "missing_text"),
        ("json", b'{"text": "a", "id": -9223372036854775809}', "integer_out_of_range"),
        ("json", b'{"text": "a", "id": 1, "id": 18446744073709551616}', "integer_out_of_range"),
        ("json", b'{"op": "u", "before": {"text": "a"}, "after": {"text": "b"}}', "debezium_envelope"),
        ("json", b'\xef\xbb\xbf {"content": "a", "id": 7}\r\n', Document("a", 7)),
        ("json", b'{"text": "a", "content": "b"}', Document("a")),
        ("json", b'{"text": null, "content": "b"}', Document("b")),
        ("json", b'{"text": "a", "text": "b", "id": 1, "id": 2}', Document("b", 2)),
        ("json", b'{"text": ""}', Document("")),
        ("json", b'{"text": "\\u0000\\r\\n\\ufeff\\ud83d\\ude42"}', Document("\0\r\n\ufeff🙂")),
        ("json", b'{"content": "a", "__faust": {"ns": "app.Doc"}}', Document("a")),
        ("json", b'{"text": "a", "b": ' + b"[" * 1023 + b"]" * 1023 + b"}", Document("a")),
        ("json", b'{"text": "a", "id": ""}', Document("a")),
        ("json", b'{"text": "a", "id": null}', Document("a")),
        ("json", b'{"text": "a", "id": true}', Document("a")),
        ("json", b'{"text": "a", "id": 1.0}', Document("a")),
        ("json", b'{"text": "a", "id": ["b"]}', Document("a")),
        ("json", b'{"text": "a", "id": 18446744073709551615}', Document("a", 2**64 - 1)),
        ("json", b'{"text": "a", "id": -9223372036854775808}', Document("a", -(2**63))),
        ("json", b'{"text": "a", "id": 18446744073709551616.0}', Document("a")),
        ("json", b'{"text": "a", "id": 1e30, "n": 18446744073709551616}', Document("a")),
        ("json", b'{"text": "a", "id": "../x\\n"}', Document("a", "../x\n")),
        ("auto", b"{", "malformed_json"),
        ("auto", b"\xef\xbb\xbf\xef\xbb\xbf{}", "malformed_json"),
        ("auto", b"{{ template }}", "malformed_json"),
        ("auto", b'\xef\xbb\xbf{"text": 5}', "wrong_type"),
        ("auto", b'{"text": 5, "content": "a"}', Document("a")),
        ("auto", b' \n{"text": "a", "id": "b"}', Document("a", "b")),
        ("auto", b'\x0b{"text": "a"}', "malformed_json"),
        ("auto", b"[]", "not_an_object"),
        ("auto", b"[1, 2", "malformed_json"),
        ("auto", b'{"a": "\\ud83d"}', "invalid_unicode"),
        ("auto", b'{"text": "a\\ud83d"', "malformed_json"),
        ("auto", json_bytes({"schema": {}, "payload": CHANGE}), "debezium_envelope"),
        ("auto", b"\0a", "control_characters"),
        ("auto", b"\x08\x96\x01\x12\x07testing", "invalid_utf8"),
        ("auto", b"42 is a number", Document("42 is a number")),
        ("auto", b'"a text", she said', Document('"a text", she said')),
        ("auto", b"\x1b[31mred\x1b[0m \t\r\n\f", Document("\x1b[31mred\x1b[0m \t\r\n\f")),
    ],
)
def test_each_value_is_what_people_would_expect(mode: str, value: bytes, expected: Document | str) -> None:
    """Beside the table of bad inputs (`tests.bad_inputs`): JSON by its beginning, binary by its bytes, else text."""
    assert answer(opened(mode), value) == expected


def test_carried_fields_come_from_the_same_object() -> None:
    """One with parts is refused: its stream asked for it, so it is not dropped in silence."""
    decoder = opened("json", metadata_fields=("label", "score", "absent"))
    result = answer(decoder, b'{"text": "a", "score": 0.5, "label": null, "other": 1}')
    assert result == Document("a", None, {"label": None, "score": 0.5})
    for value in (b'{"text": "a", "label": []}', b'{"text": "a", "label": {}}', b'{"text": "a", "label": ["a"]}'):
        assert answer(decoder, value) == "wrong_type"
        assert answer(opened("json"), value) == Document("a")


def test_parts_over_their_limits_are_refused() -> None:
    """Limits count UTF-8 bytes, a byte order mark not included."""
    plain = opened("text", max_text_bytes=4)
    assert [answer(plain, text.encode()) for text in ("\ufefféé", "ééa")] == [Document("éé"), "too_large"]
    decoder = opened(
        "json", metadata_fields=("label",), max_text_bytes=4, max_id_bytes=4, max_fields_bytes=len('{"label":"abc"}')
    )
    assert answer(decoder, json_bytes({"text": "éé", "id": "éé", "label": "abc"})) == Document(
        "éé", "éé", {"label": "abc"}
    )
    assert answer(decoder, json_bytes({"text": "ééa"}, ascii_only=True)) == "too_large"
    assert answer(decoder, json_bytes({"text": "a", "id": "ééa"})) == "id_too_long"
    assert answer(decoder, json_bytes({"text": "a", "id": 12345})) == "id_too_long"
    assert answer(decoder, json_bytes({"text": "a", "label": "abcd"})) == "fields_too_long"


def test_a_dead_letter_names_the_keys_that_are_there() -> None:
    decoder = opened("json")
    with pytest.raises(Exception, match=r"the object has: 'body', '\\x1b\[31m'") as caught:
        decoder(json_bytes({"body": 1, "\x1b[31m": 2} | {f"{n}" * 1000: n for n in range(100)}))
    assert len(str(caught.value)) < 400


@given(
    st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**308), 10**308),
    st.sampled_from(["n", "a.n", "id"]),
    st.booleans(),
)
def test_no_integer_is_rounded_in_silence(number: float, path: str, decoy: bool) -> None:  # noqa: FBT001 - drawn
    """Carried or as an id, wherever it lies: exact, or refused; a number with a point or a power is a float."""
    inner, _, name = path.rpartition(".")
    spelled = json.dumps(number)
    field = f'"{name}": {spelled}'
    others = f'"other": {10**30}, "quoted": "{spelled} {10**30}", ' if decoy else ""
    value = f'{{"text": "a", {others}{f"{json.dumps(inner)}: {{{field}}}" if inner else field}}}'.encode()
    result = answer(opened("json", metadata_fields=(path,), max_id_bytes=1000, max_fields_bytes=1000), value)
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        assert result == "integer_out_of_range"
    else:
        assert isinstance(result, Document)
        assert result.fields == {path: number}
        assert type(result.fields[path]) is type(number)


def test_text_id_and_carried_fields_may_lie_deeper() -> None:
    event = {"payload": {"op": "u", "after": {"body": "a row", "id": 7, "lang": None}}}
    decoder = opened(
        "json",
        text_fields=("text", "payload.after.body"),
        id_field="payload.after.id",
        metadata_fields=("payload.after.lang", "payload.op", "payload.after.none", "payload.op.x"),
    )
    expected = Document("a row", 7, {"payload.after.lang": None, "payload.op": "u"})
    assert answer(decoder, json_bytes(event)) == expected
    assert answer(decoder, json_bytes({"text": "b", "payload.after.id": "key"})) == Document("b", "key")
    assert answer(decoder, json_bytes({"payload": {"after": {"body": 5}}})) == "wrong_type"


MANY = RULES.most_values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"text": "a", "x": [' + b"1," * (MANY - 4) + b"1]}", Document("a")),
        (b'{"text": "a", "x": [' + b"1," * (MANY - 2) + b"1]}", "too_many_values"),
        (b'{"text": "a", "x": [' + b"[]," * (MANY // 2) + b"1]}", "too_many_values"),
        (b'{"text": "a", "x": [' + b"{}," * (MANY // 2) + b"1]}", "too_many_values"),
        (b'{"text": "' + b",[{" * (MANY // 3) + b'x"}', "too_large"),
        (b'{"text": "a", "x": "' + b'\\",[{' * MANY + b'"}', Document("a")),
        (b"[" * (MANY + 1), "too_many_values"),
        (b"," * (MANY + 1), "too_many_values"),
        (b"," * MANY, "malformed_json"),
        (b"\xff" + b"," * (MANY + 1), "too_many_values"),
        (b'{"text": "a"}' + b" " * MANY, Document("a")),
    ],
)
@pytest.mark.parametrize("mode", ["json", "auto"])
def test_values_are_counted_before_they_are_parsed(mode: str, value: bytes, expected: Document | str) -> None:
    """A byte of JSON can ask for a hundred of memory; what is in strings asks for nothing."""
    if mode == "json" or value[:1] == b"{":
        assert answer(opened(mode, max_text_bytes=100), value) == expected
        documents, refused = opened(mode, max_text_bytes=100).many([value])
        assert [*documents.texts, *(error.reason for _, error in refused)] == [getattr(expected, "text", expected)]
    if expected == "too_many_values" and value.endswith(b"}"):
        assert answer(opened(mode, rules=2), value) == Document("a")


@pytest.mark.parametrize(
    "value",
    [
        b'{"text": "' + b"\\n" * 2_000_000 + b'\\ud800"}',
        b'{"text": "' + b"\\ud800" * 500_000 + b'"}',
        b'{"text": "' + b"\\" * 4_000_001,
        b'{"' + b"k" * 300_000 + b'": {' + b",".join(b'"%d": {"a": {}}' % n for n in range(100_000)) + b"}}",
        b'{"text": "a", "id": 18446744073709551616, "x": [' + b"1," * 900_000 + b"1]}",
        b'{"text": "a", "id": 1' + b"0" * 300 + b"}",
        b'{"a":' + b'""' * 2_000_000,
    ],
    ids=range(7),
)
def test_a_refusal_takes_no_longer_than_reading_the_value(value: bytes) -> None:
    """Whatever it is refused for, time and memory follow the value's length, and not its square."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    assert isinstance(answer(opened("json"), value), str)
    assert time.process_time() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000


def test_lack_of_memory_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser says so with an error like those for invalid JSON."""

    def loads(_: bytes) -> None:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    monkeypatch.setattr("tokenmill.app.milling.decoding.plain_values.orjson.loads", loads)
    with pytest.raises(MemoryError):
        opened("json")(b'{"text": "a"}')


LIKE_JSON = (
    *("{", "{}", "{ int x; }", "{{ template }}", "{'a': 1}", " \t\r\n{", "\ufeff{", "\v\f{", "\ufeff \ufeff{"),
    *("[", "[]", "[ ]", "[ ] a task", "[[", "[[]", '["', '["a" is quoted]', "[{", "[[{x", "[\n  {"),
    *("[1]", "[1] a footnote", "[1, 2", "[-1.5e3 , x", "[12", "[1.", "[1e", "[-"),
    *("[true]", "[null ,", "[fal", "[t"),
)
LIKE_TEXT = (
    *("", " ", "a", "42", '"a"', "null", "<[]>", "(x)", "\\{", "# [1]"),
    *("[link](x)", "[x] done", "[INFO] started", "[package]", "[[bin]]", "[[wiki]]", "[ text ]", "[-x]", "[- a"),
    *("[2026-11-23 12:00] a log", "[12:00] a log", "[trueish]", "[nullable]", "[not", "[true story", "[1 a"),
)
"""Links, log lines, tables of TOML: no JSON array begins so."""


@pytest.mark.parametrize("text", [*LIKE_JSON, *LIKE_TEXT])
def test_what_begins_like_json(text: str) -> None:
    assert like_json(text.encode()) == (text in LIKE_JSON)


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
    assert isinstance(answer(opened("auto", rules=2), b'\x1e{"text": "a"}\n'), Document)


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


KEYS = st.sampled_from(["a", "b", "a.b", "b.a", "a.b.c", "", ".", "c"])
ROWS = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(), max_size=1),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
).filter(lambda row: isinstance(row, dict))


@given(ROWS, KEYS)
def test_a_path_is_the_key_of_that_name_or_else_leads_from_object_to_object(row: dict[str, Any], path: str) -> None:
    """For any names, with dots in any place; only the whole name may have a dot of its own."""
    assert find_field(row, path, ABSENT) == PlainRules.field(row, path)
    assert finder(path)(row) == find_field(row, path)  # `tokenmill produce` finds the same for ``--field``


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.b", "key"),
        ("a.c", None),
        ("x.y.z", 1),
        ("x.y", {"z": 1}),
        ("x.y.z.w", "absent"),
        ("x.w", "absent"),
        ("n.b", "absent"),
        ("l.0", "absent"),
        ('q."r.s"', 2),
        ('q."r.s".t', "absent"),
        ('"q".t."u.v".w', 3),
        ('"a.b"', "key"),
        ('q."r', 4),
    ],
)
def test_each_path_is_what_people_would_expect(path: str, expected: object) -> None:
    """The exact key first, null included; arrays are not gone into; quoted parts may hold dots."""
    row: dict[str, Any] = {"a.b": "key", "a": {"b": "path", "c": None}, "x": {"y": {"z": 1}}, "n": None, "l": [1]}
    row["q"] = {"r.s": 2, "t": {"u.v": {"w": 3}}, '"r': 4}
    assert find_field(row, path, "absent") == expected


@pytest.mark.parametrize(
    ("value", "reason", "said"),
    [
        ({}, "missing_text", "no fields"),
        ({"body": 1}, "missing_text", "the object has: 'body'"),
        ({"a": {"b": {"content": "x"}}}, "missing_text", 'text_fields = "a.b.content"'),
        ({"a": {"text": 5}, "b": {"text": "x"}}, "missing_text", 'text_fields = "b.text"'),
        ({"op": "c", "after": {"x": "a", "longer": "aa"}}, "debezium_envelope", 'text_fields = "after.longer"'),
        ({"payload": {"op": "r", "after": {"x": "a"}}}, "debezium_envelope", 'text_fields = "payload.after.x"'),
        ({"payload": {"op": "u", "after": {"x": 1}}}, "debezium_envelope", "as payload.after.body"),
        ({"payload": {"op": "d", "before": {"x": "a"}, "after": None}}, "debezium_envelope", "without a row"),
        ({"op": "c", "after": {"a.b": "x"}}, "debezium_envelope", "as after.body"),
        ({"op": "copy", "after": {}}, "missing_text", "'op', 'after'"),
        ({"op": "c"}, "missing_text", "'op'"),
        ({"op": ["c"], "after": {}}, "missing_text", "'op', 'after'"),
    ],
)
def test_the_reason_and_what_is_said(value: dict[str, Any], reason: str, said: str) -> None:
    error = without_text(value, ("text", "content"))
    assert error.reason == reason
    assert said in error.detail


def test_a_path_of_settings_is_looked_for_by_its_last_name() -> None:
    """Where ``payload.text`` is set and the producer now writes ``record.value.text``."""
    error = without_text({"record": {"value": {"text": "a"}}}, ("payload.text",))
    assert 'text_fields = "record.value.text"' in error.detail


def test_names_that_could_harm_a_log_are_not_shown_as_a_path() -> None:
    for name in ("\x1b[31m", "é", "x" * 1000):
        error = without_text({name: {"text": "a"}}, ("text",))
        assert "text_fields =" not in error.detail
        assert error.detail.isascii()
        assert len(error.detail) < 500
