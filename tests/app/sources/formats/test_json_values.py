"""JSON arrays and objects one after the other, cut into values."""

import io
import json
from collections.abc import Callable
from itertools import count, product
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sources.formats import json_values
from tokenmill.app.sources.formats.json_values import read_json
from tokenmill.app.sources.items import Bad, Content, File, Needs, Place

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['"', "\\", '\\"', "[{", "}],", "\\\\"])
json_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def read(data: bytes, *, limit: int = 1 << 20, block: int = 1 << 20, start: int = 0) -> list[Content]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_values, "BLOCK", block)
        entries = list(read_json(File("a", io.BufferedReader(io.BytesIO(data))), Needs(limit), Place(start)))
    assert [number for number, _, _ in entries] == list(range(start + 1, start + 1 + len(entries)))
    return [content for _, _, content in entries]


def parsed(found: list[Content]) -> list[Any]:
    return [orjson.loads(value) for value in found if isinstance(value, bytes)]


@given(documents=st.lists(json_documents), indent=st.sampled_from([None, 1]), block=st.integers(1, 9), data=st.data())
def test_an_array_is_cut_into_values(documents: list[Any], indent: int | None, block: int, data: st.DataObject) -> None:
    whole = json.dumps(documents, indent=indent, ensure_ascii=False).encode()
    start = data.draw(st.integers(0, len(documents)))
    assert parsed(read(whole, block=block)) == documents
    assert parsed(read(whole, block=block, start=start)) == documents[start:]


@given(
    documents=st.lists(st.dictionaries(texts, json_documents)),
    block=st.integers(3, 9),
    between=st.sampled_from(["\n", ""]),
)
@pytest.mark.slow
def test_objects_one_after_the_other_are_cut(documents: list[Any], block: int, between: str) -> None:
    whole = between.join(json.dumps(document, indent=1) for document in documents).encode()
    assert parsed(read(b"\xef\xbb\xbf" + whole, block=block)) == documents


@pytest.mark.parametrize("block", [1, 4, 1 << 20])
def test_joined_files_may_each_begin_with_a_mark(block: int) -> None:
    """As ``cat *.json`` joins what Windows programs write; also behind a value that is broken."""
    mark = b"\xef\xbb\xbf"
    files = [b'[{"text":1},{"text":2}]\n', b'{"text":3}\n{"text":"broken\n', b'{"text":4}', b'[\n{"text":5}\n]\n']
    found = read(b"".join(mark + file for file in files), block=block)
    assert [json.loads(value)["text"] for value in found if isinstance(value, bytes)] == [1, 2, 3, 4, 5]
    assert len(found) == 6
    assert [type(one) for one in read(b'{"text":1}\n\xbf{"text":2}\n', block=block)] == [bytes, Bad]


def test_values_keep_their_bytes() -> None:
    value = b'{"n": 12345678901234567890.5 , "t":"\\u00e9"}'
    assert read(b"[ " + value + b" ]") == [value]


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_a_value_that_is_too_long_is_passed_over(block: int) -> None:
    found = read(b'[{"a": 1}, {"b": "' + b"x" * 1000 + b'"}, {"c": 2}]', limit=100, block=block)
    assert found == [b'{"a": 1}', Needs(100).too_long, b'{"c": 2}']


@pytest.mark.parametrize(
    ("data", "why", "values"),
    [
        (b'[{"a": 1}, {"b": ', "cut off", 1),
        (b'[{"a": 1}, "b', "cut off", 1),
        (b'[{"a": 1}, 2', "cut off", 1),
        (b'[{"a": 1},', "cut off", 1),
        (b'{"a": 1} {"b"', "cut off", 1),
        (b"plain text", "no JSON object begins here; if this is no JSON, say what it is: --format", 0),
    ],
)
def test_a_file_that_is_cut_off_or_no_json_is_broken(data: bytes, why: str, values: int) -> None:
    *before, last = read(data)
    assert isinstance(last, Bad)
    assert last.broken
    assert why in last.why
    assert before == [b'{"a": 1}'] * values


BROKEN_VALUES = {
    "a string that is cut off": b'{"id": 3, "text": "Docum',
    "a string with a backslash at its end": b'{"id": 3, "text": "Docum\\',
    "an object that is cut off": b'{"id": 3, "text": "x"',
    "a value that is cut off": b'{"id": 3, "text":',
    "an array that is cut off": b'{"id": 3, "list": [',
    "the wrong bracket": b'{"id": 3]',
    "a bracket too many": b'{"id": 3}}',
    "brackets too many": b'{"id": 3}]]}',
    "no JSON": b"Error: timed out",
    "a quote in it": b'Error: "timed out',
    "text before an object": b'INFO {"id": 3}',
    "text behind an object": b'{"id": 3} and more',
    "too deep": b'{"a": ' + b"[" * (2 * json_values.MAX_NESTING),
}
MAKERS: dict[str, Callable[[list[bytes]], bytes]] = {
    "lines": lambda values: b"".join(value + b"\n" for value in values),
    "lines of Windows": lambda values: b"".join(value + b"\r\n" for value in values),
    "lines with commas": b",\n".join,
    "array": lambda values: b"[" + b",\n".join(values) + b"]",
    "array in lines": lambda values: b"[\n" + b",\n".join(values) + b"\n]\n",
    "array with indents": lambda values: b"[\n    " + b",\n    ".join(values) + b"\n]\n",
    "array with a space": lambda values: b"[" + b",\n ".join(values) + b"]",
    "sequence": lambda values: b"".join(b"\x1e" + value + b"\n" for value in values),
}


@pytest.mark.parametrize("maker", [*MAKERS])
def test_a_value_that_is_none_takes_no_other_with_it(maker: str) -> None:
    good = [b'{"id": %d, "text": "{[\\"", "more": [{"a": {}}]}' % number for number in range(3)]
    for broken, where, block in product(BROKEN_VALUES.values(), range(4), [1 << 20, 5]):
        found = read(MAKERS[maker]([*good[:where], broken, *good[where:]]), block=block)
        assert [value for value in found if isinstance(value, bytes) and b'"more"' in value] == good
        told = b"".join(_bytes_of(content) for content in found if content not in good)
        assert told.translate(None, b" ,]\r\n").startswith(broken.translate(None, b" ,]\r\n"))


def test_what_is_within_a_broken_value_is_no_value() -> None:
    """Of an object on several lines, what is indented deeper is a part."""
    broken = b'{\n "id": 1,\n "turns": [\n  {\n   "text": "cut\n  },\n  {"text": "b"}\n ]\n}\n'
    good = b'{\n "id": 2,\n "turns": [\n  {"text": "b"}\n ]\n}'
    (bad, value) = read(broken + good)
    assert value == good
    assert isinstance(bad, Bad)
    assert bad.data == broken.strip()


FRAGMENTS = st.lists(
    st.sampled_from(
        [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\n", b" ", b"x", b'"a"', b"1", b'{"a": 1}', b'\n{"a": 1}']
    )
)


@given(fragments=FRAGMENTS, block=st.integers(1, 9), limit=st.sampled_from([6, 1000]))
def test_what_is_sent_and_what_is_refused_are_all_of_any_file(fragments: list[bytes], block: int, limit: int) -> None:
    whole = b"".join(fragments)
    found = read(whole, block=block, limit=limit)
    assert found == read(whole, limit=limit)
    if limit > len(whole):
        assert _bare(b"".join(map(_bytes_of, found))) == _bare(whole)


def _bytes_of(content: Content) -> bytes:
    assert isinstance(content, bytes | Bad)
    return content.data if isinstance(content, Bad) else content


def _bare(data: bytes) -> bytes:
    """Return the data without what stands between values, and without the brackets of an array around them."""
    return data.translate(None, b" \n,[]")


@given(
    documents=st.lists(st.dictionaries(texts, json_documents), min_size=1, max_size=5),
    maker=st.sampled_from([*MAKERS]),
    data=st.data(),
)
def test_damage_on_a_line_loses_no_other(documents: list[Any], maker: str, data: st.DataObject) -> None:
    lines = [json.dumps(document).encode() for document in documents]
    which = data.draw(st.integers(0, len(lines) - 1))
    begin = data.draw(st.integers(0, len(lines[which])))
    end = data.draw(st.integers(begin, len(lines[which])))
    put = data.draw(st.sampled_from([b"", b'"', b"{", b"}", b"]", b"\\", b"x", b'\n"', b"\0\xff"]))
    damaged = lines[which][:begin] + put + lines[which][end:]
    found = read(MAKERS[maker]([*lines[:which], damaged, *lines[which + 1 :]]))
    there = [value for value in found if isinstance(value, bytes)]
    assert [value for value in there if value in lines[:which]][:which] == lines[:which]
    assert there[len(there) - len(lines[which + 1 :]) :] == lines[which + 1 :]


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"a":', b'{"a":[\n', b'{"a":[{},\n'])
@pytest.mark.cases(2)
def test_endless_brackets_cost_no_more_than_their_bytes(bracket: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count()
    own = json_values._Scan._next

    def counted(scan: json_values._Scan, *, ended: bool) -> bytes | Bad | None:
        next(steps)
        return own(scan, ended=ended)

    monkeypatch.setattr(json_values._Scan, "_next", counted)
    whole = bracket * 40_000 + b'\n{"a": 1}\n'

    found = read(whole, limit=1 << 16, block=1 << 16)

    assert b'{"a": 1}' in found[-2:]
    assert any(isinstance(content, Bad) and "nested deeper than 1,024 brackets" in content.why for content in found)
    assert next(steps) < 2 * len(whole)


@pytest.mark.parametrize(
    ("before", "opening", "closing", "behind"),
    [(b"[", b"[", b"]", b"]"), (b"[", b'{"a":', b"}", b"]"), (b"", b'{"a":', b"}", b"")],
)
def test_what_a_parser_reads_is_not_too_deep(before: bytes, opening: bytes, closing: bytes, behind: bytes) -> None:
    """In an array or not, the deepest value that orjson reads is one, and the next deeper one ends the file."""
    most = json_values.MAX_NESTING

    def read_deep(depth: int) -> list[Content]:
        return read(before + opening * depth + b"1" + closing * depth + behind)

    (value,) = read_deep(most)
    assert isinstance(value, bytes)
    assert orjson.loads(value)
    (bad,) = read_deep(most + 1)
    assert isinstance(bad, Bad)
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(opening * (most + 1) + b"1" + closing * (most + 1))
