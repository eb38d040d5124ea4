"""What of a source is sent."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.reading import reading_of
from tokenmill.app.settings import Settings
from tokenmill.sources import Item, Refused
from tokenmill.sources.conditions import Condition, finder
from tokenmill.sources.items import Unmet

ROW = {"uid": 7, "story": "once", "meta": {"lang": "de", "tags": ["a", "b"]}, "text": "t", "id": "x", "ok": True}


def shaped(row: dict[str, Any], settings: Settings | None = None, **options: Any) -> Item | Refused | Unmet:
    """Return what becomes of a line of JSON."""
    return reading_of(settings, **options).shape.of_json("a:1", json.dumps(row).encode())


def value_of(row: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return the object that is sent."""
    item = shaped(row, **options)
    assert isinstance(item, Item), item
    found: dict[str, Any] = json.loads(item.value)
    return found


def test_an_object_goes_as_it_stands_unless_somebody_asks_for_more() -> None:
    """Byte for byte by default and with a condition; made anew with other fields."""
    assert value_of(ROW) == ROW
    assert value_of(ROW, where=[Condition("ok", "true")]) == ROW
    assert value_of(ROW, fields=["story"]) == {"id": "x", "text": "once"}
    assert value_of(ROW, fields=["nothing", "meta.lang"], id_field="uid") == {"id": 7, "text": "de"}
    assert value_of(ROW, metadata_fields=["meta.lang", "none"]) == {"id": "x", "text": "t", "meta.lang": "de"}


def test_a_field_of_that_name_goes_before_a_path() -> None:
    """Names with dots are names first."""
    assert finder("a.b")({"a.b": 1, "a": {"b": 2}}) == 1
    assert finder("a.b")({"a": {"b": 2}}) == 2
    assert finder("a.b.c")({"a": {"b": 2}}) is None


@pytest.mark.parametrize(
    ("row", "options", "why"),
    [
        ({"body": "x"}, {}, "missing_text: no field 'text' or 'content'; there are: 'body'; say which"),
        ({"text": 7}, {}, "wrong_type: 'text' is a number, not a string"),
        ({"text": [{"role": "user"}]}, {}, "wrong_type: 'text' is an array, not a string; --map MODULE:FUNCTION makes"),
        ({"a": {"b.c": "x"}}, {"fields": ["a.b.c"]}, "stands in quotes: --field 'a.\"b.c\"'"),
        ({"text": "x" * 200}, {}, "too_large"),
        ({"text": "x", "id": "i" * 99}, {}, "id_too_long"),
        ({"text": "x", "id": 2**64}, {}, "integer_out_of_range: 'id'"),
        ({"text": "x", "uid": 2**64}, {"id_field": "uid"}, "integer_out_of_range: 'uid'"),
        ({"text": "x", "meta": {"n": 2**64}}, {"metadata_fields": ["meta.n"]}, "integer_out_of_range: 'meta.n'"),
        ({"text": "x", "lang": []}, {"metadata_fields": ["lang"]}, "'lang' is an array or an object"),
        ({"text": "x"}, {"key": "lang"}, "no_key: no field 'lang' for the key"),
    ],
)
def test_what_cannot_be_a_document_says_why(row: dict[str, Any], options: dict[str, Any], why: str) -> None:
    """The bytes are kept, for a dead letter."""
    found = shaped(row, Settings(max_text_bytes=100, max_id_bytes=20), **options)

    assert isinstance(found, Refused)
    assert why in found.why
    assert json.loads(found.data) == row


def test_an_object_goes_as_it_stands_where_the_topics_fields_are_paths() -> None:
    """For the mill finds them in it, too."""
    settings = Settings(text_fields=("payload.after.body",), id_field="payload.after.id")
    row = {"payload": {"after": {"body": "a row", "id": 7}}}
    item = shaped(row, settings)

    assert isinstance(item, Item)
    assert (json.loads(item.value), item.text) == (row, "a row")
    assert shaped({"payload": {"after": {"body": "a row", "id": "i" * 200}}}, settings) != item
    assert isinstance(shaped({"payload": {"after": {"body": "a row", "id": "i" * 200}}}, settings), Refused)


def test_keys_are_ids_or_fields() -> None:
    """As text, whatever they are."""
    keys = {key: shaped(ROW, key=key) for key in ("id", "uid", "meta.lang", "ok")}

    assert {key: item.key for key, item in keys.items() if isinstance(item, Item)} == {
        "id": b"x",
        "uid": b"7",
        "meta.lang": b"de",
        "ok": b"true",
    }


IDS = st.none() | st.text(max_size=40) | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.booleans()
ROWS = st.fixed_dictionaries({}, optional={"id": IDS, "text": st.none() | st.text(max_size=60), "content": st.text()})


@given(row=ROWS | st.lists(ROWS), limit=st.integers(1, 60), ids=st.integers(1, 60), broken=st.booleans())
def test_the_quick_way_is_the_same_way(row: Any, limit: int, ids: int, *, broken: bool) -> None:
    """It either says what the careful one says, or nothing."""
    try:
        data = orjson.dumps(row)[: -1 if broken else None]
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        return
    shape = reading_of(Settings(max_text_bytes=limit, max_id_bytes=ids)).shape

    assert shape.quick(data) in (None, shape.of_json("a:1", data))


def test_the_quick_way_is_the_usual_one() -> None:
    """For texts in either field, with any usual id; not where there is something to do."""
    shape = reading_of(Settings()).shape
    for row in ({"text": "a"}, {"content": "a", "id": 7}, {"text": "a", "id": "urn:uuid:" + "0" * 36, "more": []}):
        assert shape.quick(json.dumps(row).encode()) is not None
    for options in ({"metadata_fields": ["a"]}, {"fields": ["a"]}, {"key": "id"}, {"plain": True}, {"id_field": "uid"}):
        assert reading_of(Settings(), **options).shape.quick(b'{"text": "a", "id": 1}') is None
