"""JSON arrays and objects one after the other, cut into values."""

import io
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.sources.formats import json_values
from tokenmill.sources.formats.json_values import read_json
from tokenmill.sources.items import Bad, Content, File, Needs, Place

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['"', "\\", '\\"', "[{", "}],", "\\\\"])
json_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def read(data: bytes, *, limit: int = 1 << 20, block: int = 1 << 20, start: int = 0) -> list[Content]:
    """Return the values of a file that is read in blocks of a size."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_values, "BLOCK", block)
        entries = list(read_json(File("a", io.BufferedReader(io.BytesIO(data))), Needs(limit), Place(start)))
    assert [number for number, _, _ in entries] == list(range(start + 1, start + 1 + len(entries)))
    return [content for _, _, content in entries]


def parsed(found: list[Content]) -> list[Any]:
    """Return what the values are."""
    return [orjson.loads(value) for value in found if isinstance(value, bytes)]


@given(documents=st.lists(json_documents), indent=st.sampled_from([None, 1]), block=st.integers(1, 9), data=st.data())
def test_an_array_is_cut_into_its_elements(
    documents: list[Any], indent: int | None, block: int, data: st.DataObject
) -> None:
    """Whatever stands in strings and wherever blocks end; and from any element on."""
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
    """JSON lines with another suffix, or objects on several lines."""
    whole = between.join(json.dumps(document, indent=1) for document in documents).encode()

    assert parsed(read(b"\xef\xbb\xbf" + whole, block=block)) == documents


def test_values_keep_their_bytes() -> None:
    """A number that no float holds, and spaces, go on as they are."""
    value = b'{"n": 12345678901234567890.5 , "t":"\\u00e9"}'
    assert read(b"[ " + value + b" ]") == [value]


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_a_value_that_is_too_long_is_passed_over(block: int) -> None:
    """The ones beside it are read."""
    found = read(b'[{"a": 1}, {"b": "' + b"x" * 1000 + b'"}, {"c": 2}]', limit=100, block=block)

    assert found == [b'{"a": 1}', Needs(100).too_long, b'{"c": 2}']


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'[{"a": 1}, {"b": ', "cut off"),
        (b'[{"a": 1}, "b', "cut off"),
        (b'{"a": 1} {"b"', "cut off"),
        (b"plain text", "no JSON array"),
        (b'[{"a": 1}] {"b": 2}', "follows the end"),
        (b'{"a": 1}}', "never opened"),
    ],
)
def test_what_is_no_json_ends_the_file_with_a_reason(data: bytes, why: str) -> None:
    """What came before is read."""
    *before, last = read(data)

    assert isinstance(last, Bad)
    assert last.broken
    assert why in last.why
    assert before == [b'{"a": 1}'] * data.count(b'"a"')


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"a":'])
def test_endless_brackets_are_given_up_early(bracket: bytes) -> None:
    """Deeper than any parser of ours reads: a gigabyte of them costs no more than its beginning."""

    class Counted(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            piece = (bracket * (1 + len(buffer) // len(bracket)))[: len(buffer)]
            buffer[:] = piece
            self.given += len(piece)
            return len(piece)

    raw = Counted()
    found = list(read_json(File("a", io.BufferedReader(raw)), Needs(1 << 30), Place()))

    ((_, _, bad),) = found
    assert isinstance(bad, Bad)
    assert bad.broken
    assert "nested deeper than 1,024 brackets" in bad.why
    assert raw.given <= 2 * json_values.BLOCK


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
