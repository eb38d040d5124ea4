"""Mode ``json``: what it takes, and the reason for each thing that it does not."""

import json
import resource
import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import json_bytes
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document
from tokenmill.errors import RecordError


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
    ("value", "reason"),
    [
        (b'{"text": "a", "other": "\\udfff"}', "invalid_unicode"),
        (b'{"text": "a", "b": ' + b"[" * 1024 + b"]" * 1024 + b"}", "too_deep"),
        (b"null", "not_an_object"),
        (b'{"body": "a"}', "missing_text"),
        (b'{"text": "a", "id": -9223372036854775809}', "integer_out_of_range"),
        (b'{"text": "a", "id": 1, "id": 18446744073709551616}', "integer_out_of_range"),
        (b'{"op": "u", "before": {"text": "a"}, "after": {"text": "b"}}', "debezium_envelope"),
    ],
)
def test_each_bad_value_has_its_reason(value: bytes, reason: str) -> None:
    assert answer(opened("json"), value) == reason


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (b'\xef\xbb\xbf {"content": "a", "id": 7}\r\n', Document("a", 7)),
        (b'{"text": "a", "content": "b"}', Document("a")),
        (b'{"text": null, "content": "b"}', Document("b")),
        (b'{"text": "a", "text": "b", "id": 1, "id": 2}', Document("b", 2)),
        (b'{"text": ""}', Document("")),
        (b'{"text": "\\u0000\\r\\n\\ufeff\\ud83d\\ude42"}', Document("\0\r\n\ufeff🙂")),
        (b'{"content": "a", "__faust": {"ns": "app.Doc"}}', Document("a")),
        (b'{"text": "a", "b": ' + b"[" * 1023 + b"]" * 1023 + b"}", Document("a")),
        (b'{"text": "a", "id": ""}', Document("a")),
        (b'{"text": "a", "id": null}', Document("a")),
        (b'{"text": "a", "id": true}', Document("a")),
        (b'{"text": "a", "id": 1.0}', Document("a")),
        (b'{"text": "a", "id": ["b"]}', Document("a")),
        (b'{"text": "a", "id": 18446744073709551615}', Document("a", 2**64 - 1)),
        (b'{"text": "a", "id": -9223372036854775808}', Document("a", -(2**63))),
        (b'{"text": "a", "id": 18446744073709551616.0}', Document("a")),
        (b'{"text": "a", "id": 1e30, "n": 18446744073709551616}', Document("a")),
        (b'{"text": "a", "id": "../x\\n"}', Document("a", "../x\n")),
    ],
)
def test_each_good_value_is_its_document(value: bytes, document: Document) -> None:
    assert answer(opened("json"), value) == document


def test_carried_fields_come_from_the_same_object() -> None:
    decoder = opened("json", metadata_fields=("label", "score", "absent"))
    result = answer(decoder, b'{"text": "a", "score": 0.5, "label": null, "other": 1}')
    assert result == Document("a", None, {"label": None, "score": 0.5})


@pytest.mark.parametrize("field", [b"[]", b"{}", b'["a"]'])
def test_a_carried_field_with_parts_is_refused(field: bytes) -> None:
    """Its stream asked for it, so it is not dropped in silence."""
    value = b'{"text": "a", "label": ' + field + b"}"
    assert answer(opened("json", metadata_fields=("label",)), value) == "wrong_type"
    assert answer(opened("json"), value) == Document("a")


def test_parts_over_their_limits_are_refused() -> None:
    """One byte over is over: of the text in UTF-8, of the id, of all carried fields together."""
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
    """By dotted paths; a carried field is called by its path, and one that is absent stays absent."""
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
