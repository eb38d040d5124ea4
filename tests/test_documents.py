"""Documents, their limits and their metas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import documents, ids, json_scalars, texts
from tokenmill.documents import Document, Limits, document_meta
from tokenmill.errors import RecordError

CARRIED = ("score", "label", 'é"\n')


@given(documents, st.sets(st.sampled_from(CARRIED)).map(tuple) | st.just(CARRIED))
def test_a_meta_is_the_canonical_json_of_id_and_carried_fields(document: Document, carried: tuple[str, ...]) -> None:
    """Python's own json, with sorted keys and no spaces, writes the same bytes; floats and escapes included."""
    fields = {name: document.fields[name] for name in carried if name in document.fields}
    parts: dict[str, object] = {"fields": fields, "id": document.id}
    expected = {name: part for name, part in parts.items() if part not in ({}, None)}
    text = json.dumps(expected, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if expected else ""
    assert document_meta(document, carried) == text.encode()


@given(ids, st.dictionaries(st.sampled_from(CARRIED), json_scalars))
def test_no_meta_within_the_limits_is_longer_than_the_limits_say(
    name: str | int | None, fields: dict[str, str | int | float | bool | None]
) -> None:
    """What passes the checks at its very limit has a meta of at most `max_meta_bytes`, and at one byte less fails."""
    document = Document("text", name, fields)
    id_bytes = len(json.dumps(name, ensure_ascii=False).encode()) - 2 * isinstance(name, str)
    fields_bytes = len(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
    limits = Limits(1, id_bytes, fields_bytes)
    limits.check_id(name)
    limits.check_fields(fields)
    assert len(document_meta(document, CARRIED)) <= limits.max_meta_bytes
    if name is not None:
        with pytest.raises(RecordError, match="id_too_long"):
            Limits(1, id_bytes - 1, fields_bytes).check_id(name)
    if fields:
        with pytest.raises(RecordError, match="fields_too_long"):
            Limits(1, id_bytes, fields_bytes - 1).check_fields(fields)


@given(texts)
def test_the_text_limit_counts_utf8_bytes(text: str) -> None:
    size = len(text.encode())
    Limits(size, 1, 1).check_text(text)
    with pytest.raises(RecordError, match="too_large"):
        Limits(size - 1, 1, 1).check_text(text)
