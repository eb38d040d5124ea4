"""What of a source is sent, and in what form; `--where`: what a condition is, and what meets it."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.reading import found_in, reading_of, refusals, values
from tokenmill.app.milling.decoding.plain_values import JsonDecoder, ObjectFields
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Refused, ShapeOptions, shape_for
from tokenmill.app.sources.conditions import Condition, finder
from tokenmill.app.sources.items import Unmet
from tokenmill.documents import Document
from tokenmill.errors import InputError

SCALARS = st.none() | st.booleans() | st.integers(0, 9) | st.floats(0.25, 0.75) | st.text(max_size=5)
ROW = {"uid": 7, "story": "once", "meta": {"lang": "de", "tags": ["a", "b"]}, "text": "t", "id": "x", "ok": True}


def shaped(row: dict[str, Any], settings: Settings | None = None, **options: Any) -> Item | Refused | Unmet:
    return reading_of(settings, **options).shape.of_json("a:1", json.dumps(row).encode())


def sent(found: Item | Refused | Unmet) -> Any:
    assert isinstance(found, Item), found
    return json.loads(found.value)


def test_an_object_goes_as_it_stands_unless_somebody_asks_for_more() -> None:
    assert sent(shaped(ROW)) == ROW
    assert sent(shaped(ROW, where=[Condition("ok", "true")])) == ROW
    assert sent(shaped(ROW, fields=["story"])) == {"id": "x", "text": "once"}
    assert sent(shaped(ROW, fields=["nothing", "meta.lang"], id_field="uid")) == {"id": 7, "text": "de"}
    assert sent(shaped(ROW, metadata_fields=["meta.lang", "none"])) == {"id": "x", "text": "t", "meta.lang": "de"}


@pytest.mark.parametrize(
    ("line", "options", "sent"),
    [
        (b'{"text":"a"}', {}, b'{"text":"a","id":"a.jsonl:3"}'),
        (b'{"text": "a", "n": [1]} \t', {}, b'{"text": "a", "n": [1],"id":"a.jsonl:3"}'),
        (b'\xef\xbb\xbf{"text":"a"}', {}, b'{"text":"a","id":"a.jsonl:3"}'),
        (b"\xef\xbb\xbf" * 5000 + b'{"text":"a"}', {}, b'{"text":"a","id":"a.jsonl:3"}'),
        (b'\x1e{"text":"a"}', {}, b'{"text":"a","id":"a.jsonl:3"}'),
        (b'{"id":null,"text":"a"}', {}, b'{"id":null,"text":"a","id":"a.jsonl:3"}'),
        (b'{"id":"","text":"a"}', {}, b'{"id":"","text":"a","id":"a.jsonl:3"}'),
        (b'{"id":[7],"text":"a"}', {"id_field": "id"}, b'{"id":[7],"text":"a","id":"a.jsonl:3"}'),
        (b'{"text":"a","n":1}', {"metadata_fields": ["n"]}, b'{"text":"a","n":1,"id":"a.jsonl:3"}'),
        (b'{"story":"a"}', {"fields": ["story"], "id_field": "uid"}, b'{"text":"a","id":"a.jsonl:3"}'),
        (b'{"id":0,"text":"a"}', {}, b'{"id":0,"text":"a"}'),
        (b'{"id":"x","text":"a"}', {}, b'{"id":"x","text":"a"}'),
        (b'{"text":"a"}', {"plain": True}, b"a"),
        (b'{"text":"%s"}' % (b"a" * 80), {}, b'{"text":"%s"}' % (b"a" * 80)),
    ],
)
def test_an_object_without_an_id_gets_its_place_as_one(line: bytes, options: dict[str, Any], sent: bytes) -> None:
    """At its end, where it counts; not beside an id, nor where the record would be too long with any id."""
    shape = reading_of(Settings(max_id_bytes=100, max_record_bytes=200), **options).shape
    found = shape.quick(line) or shape.of_json("", line)
    assert isinstance(found, Item)
    assert found.needs_id == (b"a.jsonl" in sent)
    assert (shape.ids.given(found, ("a.jsonl", 3)) if found.needs_id else found).value == sent


def test_a_decoder_of_the_users_own_gets_objects_as_they_are() -> None:
    shape = reading_of(Settings(decode=f"{__name__}:no_decoder")).shape
    assert shape.quick(b'{"text":"a"}') == Item(b'{"text":"a"}', "a")


@given(
    row=st.dictionaries(st.text(max_size=5), st.recursive(SCALARS, st.lists, max_leaves=3), max_size=4),
    name=st.text(min_size=1, max_size=30),
    number=st.integers(1, 10**9),
    id_field=st.sampled_from(["id", "meta.id", 'a."b.c"']),
)
def test_the_mill_sees_a_place_as_id_and_no_change(row: dict[str, Any], name: str, number: int, id_field: str) -> None:
    settings = Settings(id_field=id_field, metadata_fields=("lang",))
    row |= {"text": "a", "lang": "de"}
    shape = shape_for(settings.for_topic("raw"), settings.max_record_bytes)
    item = shape.of_json("", orjson.dumps(row))
    assert isinstance(item, Item)
    decoder = JsonDecoder(ObjectFields(("text",), id_field, ("lang",), shape.limits))
    before, place = decoder(item.value), f"{name}:{number}"
    document = decoder(shape.ids.given(item, (name, number)).value if item.needs_id else item.value)
    assert document == Document(before.text, place if before.id is None else before.id, before.fields)
    assert item.needs_id == (before.id is None)


def test_a_field_of_that_name_goes_before_a_path() -> None:
    assert finder("a.b")({"a.b": 1, "a": {"b": 2}}) == 1
    assert finder("a.b")({"a": {"b": 2}}) == 2
    assert finder("a.b.c")({"a": {"b": 2}}) is None


@pytest.mark.parametrize(
    ("row", "options", "why"),
    [
        ({"body": "x"}, {}, "missing_text: no field 'text' or 'content'; there are: 'body'; say which"),
        ({"text": 7}, {}, "wrong_type: 'text' is a number, not a string"),
        ({"text": [{"role": "user"}]}, {}, "wrong_type: 'text' is an array, not a string; --map MODULE:FUNCTION makes"),
        ({"talk": [{"said": "x"}]}, {"fields": ["talk.said"]}, "there are: 'talk'; say which is the text: --field, or"),
        ({"talk": [{"said": "x"}]}, {"fields": ["talk[0].said"]}, "or make it of its parts: --map MODULE:FUNCTION"),
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
    assert isinstance(shaped({"payload": {"after": {"body": "a row", "id": "i" * 200}}}, settings), Refused)


def test_keys_are_ids_or_fields() -> None:
    for field, key in {"id": b"x", "uid": b"7", "meta.lang": b"de", "ok": b"true"}.items():
        item = shaped(ROW, key=field)
        assert isinstance(item, Item)
        assert item.key == key


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("not this one")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not this one")

    __hash__ = None  # type: ignore[assignment]


ODD: dict[str, tuple[Any, str]] = {
    "NaN": (float("nan"), "wrong_type: the carried field 'odd' is nan, which JSON has not; as null: --nan-as-null"),
    "infinite": (np.float16("-inf"), "'odd' is -inf, which JSON has not"),
    "bytes": (b"\xff", "invalid_utf8: 'odd' is not UTF-8: invalid start byte at byte 0"),
    "an array": ([1], "wrong_type: the carried field 'odd' is an array or an object"),
    "an object": ({"a": 1}, "wrong_type: the carried field 'odd' is an array or an object"),
    "too large": (2**64, "integer_out_of_range: 'odd' is an integer beyond 64 bits"),
    "beyond any text": (10**5000, "integer_out_of_range: 'odd' is an integer beyond 64 bits"),
    "half a character": ("\ud800", "invalid_utf8: 'odd' has half a character"),
    "no text": (Unspeakable(), "'odd' is of type Unspeakable, which cannot be made text: not this one"),
}
CARRIED: list[tuple[Any, Any]] = [
    (Decimal("1.50"), "1.50"), (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01 00:00:00+00:00"), (b"\xc3\xa9", "é"),
    (np.int64(5), 5), (np.float16(0.5), 0.5), (np.float64(0.5), 0.5), (np.bool_(True), True),
    (2**64 - 1, 2**64 - 1), (None, None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "why"), ODD.values(), ids=ODD.keys())
def test_what_cannot_be_carried_is_refused_with_its_field(value: Any, why: str) -> None:
    row = {"text": "x", "odd": value}
    found = reading_of(metadata_fields=["odd"]).shape.of_row("a:1", row, "a:1")
    assert isinstance(found, Refused)
    assert why in found.why
    for options in ({"key": "odd"}, {"where": [Condition("odd", "1")]}, {"id_field": "odd"}, {"fields": ["odd"]}):
        assert isinstance(reading_of(**options).shape.of_row("a:1", row, "n"), Item | Refused | Unmet)


@pytest.mark.parametrize(("value", "carried"), CARRIED)
def test_what_is_carried_is_as_json_has_it(value: Any, carried: Any) -> None:
    found = reading_of(metadata_fields=["odd"]).shape.of_row("a:1", {"text": "x", "odd": value}, "n")
    assert sent(found).get("odd") == carried
    assert type(sent(found).get("odd")) is type(carried)


def test_numbers_that_are_not_finite_are_null_where_asked() -> None:
    shape = reading_of(metadata_fields=["n"], nan_as_null=True).shape
    assert sent(shape.of_row("a:1", {"text": "x", "n": float("inf")}, "n")) == {"id": "n", "text": "x"}
    line = b'{"text":"NaN","n":NaN,"m":[-Infinity]}'
    found = reading_of(nan_as_null=True).shape.of_json("a:1", line)
    assert sent(found) == {"text": "NaN", "n": None, "m": [None]}
    refused = reading_of().shape.of_json("a:1", line)
    assert isinstance(refused, Refused)
    assert refused.why.endswith("; --nan-as-null reads NaN and Infinity")
    assert refused.data == line


@pytest.mark.parametrize("between", ["", " ", "\r"])
def test_objects_that_share_a_line_are_refused_with_the_format_that_reads_them(between: str, tmp_path: Path) -> None:
    """As programs write them that end lines with a carriage return, or not at all."""
    (tmp_path / "a.jsonl").write_bytes(between.join(['{"text":"one"}', '{"text":"two"}']).encode())
    ((where, why),) = refusals(found_in(reading_of(), tmp_path / "a.jsonl"))
    assert (where, why.endswith("; --format json reads several objects on a line")) == ("a.jsonl:1", True)
    found = found_in(reading_of(choice="json"), tmp_path / "a.jsonl")
    assert [json.loads(value)["text"] for value in values(found)] == ["one", "two"]


NO_IDS: list[Any] = [None, "", 1.5, 2.0**60, float("nan"), float("inf"), Decimal("sNaN"), True, [], {}, b"\xff"]
IDS_OF_ROWS: list[tuple[Any, Any]] = [
    ("x", "x"), (7, 7), (101.0, 101), (np.float32(101), 101), (-0.0, 0), (2.0**53, 2**53), (b"x", "x"),
    (Decimal(101), "101"), (date(2026, 3, 1), "2026-03-01"), *((value, None) for value in NO_IDS),
]  # fmt: skip


@pytest.mark.parametrize(("value", "name"), IDS_OF_ROWS)
@pytest.mark.parametrize("asked", [True, False])
def test_ids_are_texts_or_whole_numbers_or_it_is_told(value: Any, name: Any, *, asked: bool) -> None:
    shape = reading_of(fields=["text"], id_field="id" if asked else None).shape
    found = shape.of_row("a:1", {"text": "x", "id": value}, "a:1")
    assert isinstance(found, Item)
    assert sent(found) == {"id": "a:1" if name is None else name, "text": "x"}
    assert found.unnamed == (name is None and (asked or value is not None))


def test_objects_that_go_as_they_are_get_ids_where_somebody_asked() -> None:
    """Floats that pandas wrote become whole numbers; else their bytes are left alone."""
    line = b'{"id":101.0,"text":"one","more":1}'
    as_is, asked = reading_of().shape, reading_of(id_field="id").shape
    assert as_is.of_json("a:1", line) == Item(line, "one")
    assert asked.of_json("a:1", line) == Item(b'{"id":101,"text":"one"}', "one")
    for odd in (b'{"text":"one"}', b'{"text":"one","id":null}', b'{"text":"one","id":1.5}'):
        assert asked.quick(odd) is None
        assert asked.of_json("a:1", odd) == Item(odd, "one", unnamed=True, needs_id=True)


IDS = st.none() | st.text(max_size=40) | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.booleans()
ROWS = st.fixed_dictionaries({}, optional={"id": IDS, "text": st.none() | st.text(max_size=60), "content": st.text()})


@given(row=ROWS | st.lists(ROWS), limit=st.integers(1, 60), ids=st.integers(1, 60), broken=st.booleans())
def test_the_quick_way_is_the_same_way(row: Any, limit: int, ids: int, *, broken: bool) -> None:
    try:
        data = orjson.dumps(row)[: -1 if broken else None]
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        return
    shape = reading_of(Settings(max_text_bytes=limit, max_id_bytes=ids)).shape
    assert shape.quick(data) in (None, shape.of_json("a:1", data))


def test_the_quick_way_is_the_usual_one() -> None:
    shape = reading_of(Settings()).shape
    for row in ({"text": "a"}, {"content": "a", "id": 7}, {"text": "a", "id": "urn:uuid:" + "0" * 36, "more": []}):
        assert shape.quick(json.dumps(row).encode()) is not None
    for options in ({"metadata_fields": ["a"]}, {"fields": ["a"]}, {"key": "id"}, {"plain": True}, {"id_field": "uid"}):
        assert reading_of(Settings(), **options).shape.quick(b'{"text": "a", "id": 1}') is None


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 4 << 20), ({"tokenizer": "bytes"}, 4 << 20), ({"tokenizer": "a.json"}, 3 << 19), ({"max_text_bytes": 9}, 9)],
    ids=str,
)
def test_a_text_has_the_limit_that_the_recipe_will_have(settings: dict[str, Any], limit: int) -> None:
    """In whatever it is: what is over it is named with it. The identity of runs has the limit of earlier versions."""
    shape, earlier = reading_of(Settings(**settings)).shape, reading_of(Settings()).shape
    for length, fits in ((limit, True), (limit + 1, False)):
        text = "é" * (length // 2) + "a" * (length % 2)
        row = {"id": 1, "text": text}
        whole = json.dumps(row, ensure_ascii=False).encode()
        for found in (shape.of_json("f", whole), shape.of_row("f", row, ""), shape.of_text("f", "", text.encode())):
            assert isinstance(found, Item) == fits
            if isinstance(found, Refused):
                assert found.why == f"too_large: the text is longer than {limit} bytes (max_text_bytes)"
    assert (shape.deciding() == earlier.deciding()) == ("max_text_bytes" not in settings)


def test_texts_alone_are_not_for_a_mill_that_takes_objects_alone() -> None:
    topic = Settings(decode="json").for_topic("raw")
    with pytest.raises(InputError, match="leave --plain out"):
        shape_for(topic, 1 << 20, ShapeOptions(plain=True))


MET = {
    "uid": 7,
    "score": 0.5,
    "price": Decimal("1.50"),
    "meta": {"lang": "de", "tags": ["a", "b"], "votes": [1, 5]},
    "day": "2026-03-01",
    "cell": "0.73",
    "code": "007",
    "said": 'he, "x"',
    "ok": True,
    "gone": None,
    "a < b": "odd",
}
MEETS = [
    "uid=7", "uid = 7", "uid==7.0", "uid >= 7", "uid<8", "uid in 3,7", "uid not in (3, 8)", "uid!=8",
    "score>=0.5", "score = 0.50", "score <= 5e-1 \t", "price = 1.5", "price > 1.49",
    "meta.lang=de", "meta.lang == de", "meta.lang != en", "meta.lang in en,de", 'meta.lang in ["en", "de"]',
    "meta.tags=b", "meta.tags != c", "meta.tags not in c,d", "meta.votes > 4",
    "day >= 2026-02-28", "day < 2026-03-02", "cell > 0.7", "cell <= 1", "code=007", "code < 8", 'code < "1"',
    'said = "he, \\"x\\""', 'said in "he, \\"x\\"",b', "ok=true", "ok in true,false",
    "none=null", "gone=null", "uid != null", '"a < b" = odd',
]  # fmt: skip
FAILS = [
    "uid=8", "uid != 7", "uid>7", 'uid="7"', "uid in 3,8", "uid not in 7,8", "uid < de", "meta.lang=en",
    "meta.lang.x=1", "meta.tags=c", "meta.tags != b", "meta.votes > 5", "meta.lang > 5", "day > 2026-03-01",
    "code=7", "cell > 0.74", "ok > 0", "ok=1", "ok != true", "none=x", "none != x", "none not in x,y", "none < 1",
    "gone != x", "meta < 1", "meta < z",
    "gone != null", "code < 7", 'code < "0"',
]  # fmt: skip


@pytest.mark.parametrize(("text", "meets"), [*((text, True) for text in MEETS), *((text, False) for text in FAILS)])
def test_an_object_meets_a_condition_or_not(text: str, *, meets: bool) -> None:
    """A field that is not there meets nothing, not even an inequality; nor does a number compare with a text."""
    assert Condition.parse(text).holds(MET) == meets


@pytest.mark.parametrize(
    "text",
    ["lang", "", "=x", " =x", "in a,b", "lang in", "lang in ", "lang in a,,b", "lang in (a,b", "lang !x", "score >",
     "score >>1", "score => 5", "score =< 0.5", "score <> 5", "lang === en", "lang != = x", 'lang = "en', 'lang = "e"n',
     'x in "a"b', "a < ="],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InputError, match=r"is no condition \(.*field=value.*score>=0\.5.*lang in en,de"):
        Condition.parse(text)


names = st.text("abc._ ", min_size=1).map(str.strip).filter(bool) | st.text(min_size=1)
written = st.text(st.characters(exclude_categories=["Cs"]))


@given(field=names, operator=st.sampled_from(["=", "==", "!=", "<", "<=", ">", ">=", "in", "not in"]), value=written)
def test_anything_can_be_written_in_quotes(field: str, operator: str, value: str) -> None:
    found = Condition.parse(f"{json.dumps(field)} {operator} {json.dumps(value)}")
    assert (found.field, found.operator) == (field, "=" if operator == "==" else operator)
    assert found.holds({field: value}) == (operator in ("=", "==", "<=", ">=", "in"))
    assert found == Condition.parse(
        f" {json.dumps(field)}{operator.replace('==', '=').join('  ')}{json.dumps(value)}  "
    )


@given(
    left=st.integers() | st.floats(allow_nan=False, allow_infinity=False), right=st.integers(-9, 9) | st.floats(-9, 9)
)
def test_numbers_compare_by_value(left: float, right: float) -> None:
    for operator, expected in (("<", left < right), ("<=", left <= right), (">", left > right), (">=", left >= right)):
        condition = Condition.parse(f"n{operator}{right!r}")
        assert condition.holds({"n": left}) == expected
        assert condition.holds({"n": repr(left)}) == expected
    assert Condition.parse(f"n={right!r}").holds({"n": left}) == (left == right)
    assert Condition.parse(f"n!={right!r}").holds({"n": left}) == (left != right)


@given(text=st.text())
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    try:
        condition = Condition.parse(text)
    except InputError:
        return
    others: list[Any] = [None, 1, "x", [], {}, Decimal("nan"), True, [None, "x"]]
    for value in others:
        condition.holds({condition.field: value})


def test_equality_is_known_again_by_later_versions() -> None:
    """What identifies a run must stay as it was: field and value."""
    assert Condition.parse("language=Python").deciding() == ["language", "Python"]
    assert Condition.parse("score >= 0.5").deciding() == ["score", ">=", "0.5"]


def test_what_is_unmet_is_counted() -> None:
    """And whether for want of the field, which a misspelt name shows by."""
    shape = reading_of(where=[Condition.parse("score >= 0.5")]).shape
    rows: list[dict[str, Any]] = [{"score": 0.4}, {"scores": 1}, {"score": None}]
    found = [shape.of_json("a:1", json.dumps({"text": "x", **row}).encode()) for row in rows]
    assert found == [Unmet(1, 0), Unmet(1, 1), Unmet(1, 1)]
