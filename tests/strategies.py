"""Hypothesis strategies that several tests share: any text, any JSON, and the bytes that break decoders."""

import json
import operator
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.mills import RECIPE, SILENT, Source, make_source, tiny_bpe
from tokenmill.documents import FLUSH_HEADER, Document, Record
from tokenmill.wire.chain import Cursor
from tokenmill.wire.pieces import Piece
from tokenmill.wire.totals import Amount, Figures, StepFigures, Totals

texts = st.text()
"""Any Unicode text without lone surrogates: `st.text` makes no others."""

json_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), texts
)

json_values = st.recursive(
    json_scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)

json_objects = st.dictionaries(
    st.sampled_from(["text", "content", "id", "label", "score", "__faust"]) | texts, json_values, max_size=8
)
"""Objects whose keys often are those that decoders look for."""


def json_bytes(value: Any, *, ascii_only: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode()


json_fragments = st.lists(
    st.sampled_from(
        [
            *(b"{", b"}", b"[", b"]", b":", b",", b" ", b"\n", b'"', b"\\", b"\x00", b"\xff", b"\xef\xbb\xbf"),
            *(b'"text"', b'"content"', b'"id"', b'"text":', b'{"text":', b'{"text":"a"', b'"a"}'),
            *(b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\\\ud800"', b"\\ud800", b'"\\uD83D\\u0041"'),
            *(b"null", b"true", b"0", b"-1", b"1.5", b"1e400", b"-1e400", b"NaN", b"Infinity", b"9" * 25, b"9" * 400),
            *("é".encode(), "語".encode(), "🙂".encode(), b"\xed\xa0\x80", b"\xc0\xaf"),
        ]
    ),
    max_size=12,
).map(b"".join)
"""What looks a little like JSON: now and then it is, mostly it nearly is."""

nasty_bytes = st.one_of(
    st.binary(),
    json_fragments,
    texts.map(str.encode),
    json_values.map(json_bytes),
    json_objects.map(json_bytes),
    json_objects.map(lambda value: json_bytes(value, ascii_only=True)),
    json_objects.map(lambda value: b"\xef\xbb\xbf" + json_bytes(value)),
    st.tuples(json_objects, st.integers(0, 200)).map(lambda pair: json_bytes(pair[0])[: pair[1]]),
    st.integers(1000, 1050).map(lambda depth: b'{"text": ' + b"[" * depth + b"]" * depth + b"}"),
    st.integers(1000, 3000).map(lambda depth: b"[" * depth),
)

ids = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.text(min_size=1))
documents = st.builds(
    Document, texts, ids, st.dictionaries(st.sampled_from(["label", "score", "a b", 'é"\n']), json_scalars)
)


def _divided(shards: int, **splits: int) -> dict[str, Any]:
    return {"shards": shards, "splits": tuple(splits.items()), "split": next(iter(splits))}


_fields = st.builds(
    operator.or_,
    st.fixed_dictionaries(
        {
            "decode": st.sampled_from(["auto", "auto", "json", "text"]),
            "normalize": st.sampled_from(["none", "NFD"]),
            "min_chars": st.sampled_from([0, 0, 3]),
            "allow_flush": st.sampled_from([True, True, False]),
            "split_by": st.sampled_from(["id", "content"]),
            "metadata_fields": st.sampled_from([(), ("label",), ("score", "label")]),
        }
    ),
    st.sampled_from([_divided(1, train=1), _divided(2, train=1, validation=1), _divided(5, b=1, a=2, c=1)]),
)

ROWS = [
    {name: value for name, value in {"long": long, "short": short}.items() if value not in {"truncate", "pad"}}
    for long in ("truncate", "split", "drop")
    for short in ("pad", "drop")
]

frames = st.sampled_from(
    [
        *({}, {}, {"begin_of_document": (5,)}, {"end_of_document": (), "padding": 6}, {"padding": 9}),
        {"begin_of_document": (5, 6, 5), "end_of_document": (7, 8)},
        {"begin_of_document": (5,), "end_of_document": (), "padding": 0},
    ]
)
"""What stands around documents, as fields of a recipe: mostly one id after each."""

packings: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        *[{"packing": "concat"}] * 4,
        *[{"packing": "rows", "packing_parameters": parameters} for parameters in ROWS],
        {"packing": "chunks"},
        {"packing": "chunks", "packing_parameters": {"rest": "pad"}},
    ]
)
"""Packings as fields of a recipe, the sizes of blocks left out; mostly ``concat``."""


def packed(packing: dict[str, Any], block_tokens: int, frame: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a packing whose blocks have so many tokens, or as many more as a row needs."""
    if packing["packing"] == "chunks":
        chunk = {"chunk_tokens": block_tokens - 1, **packing.get("packing_parameters", {})}
        return {**packing, "packing_parameters": chunk, "segment_tokens": 1}
    if packing["packing"] == "rows":
        around = len(frame.get("begin_of_document", ())) + len(frame.get("end_of_document", (0,)))
        return {**packing, "block_tokens": max(block_tokens, around + 1)}
    return packing


def _source(
    fields: dict[str, Any], block_tokens: int, frame: dict[str, Any], packing: dict[str, Any], engine: str
) -> Source:
    fields |= frame | {"block_tokens": block_tokens} | packed(packing, block_tokens, frame)
    if engine == "bytes":
        return make_source(replace(RECIPE, **fields))
    bpe = tiny_bpe()
    assert bpe.vocabulary_size <= 1 << 16
    return make_source(replace(RECIPE, **{"end_of_document": 3} | fields, dtype=engine), engine=bpe)


def sources_in(packing: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Source]:
    sizes, engines = st.integers(2, 9) | st.just(64), st.sampled_from(["bytes", "uint16", "uint32"])
    return st.builds(_source, _fields, sizes, frames, packing, engines)


sources = sources_in(packings)
"""Raw partitions with one or several chains of small blocks; in one division, no split owns the last shard."""

short_texts = st.text("ab \né🙂\x00", max_size=12) | st.integers(0, 50).map(lambda n: "ab" * n)
"""Texts that make blocks of a few tokens interesting: some fill several."""


def _json_record(text: str, name: str | int | None, fields: dict[str, Any]) -> bytes:
    return json_bytes({"text": text, **({} if name is None else {"id": name}), **fields})


values = st.one_of(
    st.builds(
        _json_record,
        short_texts,
        st.none() | st.integers(0, 9) | st.text("xyz", max_size=30),
        st.dictionaries(st.sampled_from(["label", "score"]), st.sampled_from(["y", "é" * 10, None, 1.5, 7, []])),
    ),
    short_texts.map(str.encode),
    st.sampled_from([b"", b" ", b"\xff", b'{"text": "\\ud800"}', b"[]", b"x" * 1001, SILENT.encode()]),
    nasty_bytes,
)
"""Values of raw records: documents mostly, and all that is none."""

_bodies = st.one_of(
    *[st.tuples(values, st.just(()))] * 8,
    st.just((None, ())),
    st.just((None, (FLUSH_HEADER,))),
    st.just((b"ab", (FLUSH_HEADER,))),
)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 14) -> list[Record]:
    """Draw the records of one raw partition, with gaps between their offsets."""
    offset = 0
    records = []
    parts = st.tuples(st.integers(1, 3), st.integers(-1, 9), st.none() | st.binary(max_size=2), _bodies)
    for gap, timestamp, key, (value, headers) in draw(st.lists(parts, max_size=max_size)):
        offset += gap
        records.append(Record(offset, timestamp, key, value, headers))
    return records


feed_sizes = st.lists(st.integers(1, 5), max_size=4)
"""How records are divided into feeds: `tests.mills.divide`; none is one feed for all."""

message_bytes = st.sampled_from([1, 300, 500, 1_000_000])
"""Sizes at which messages are cut: after every block, after a few, never within a feed."""

_offsets, _optional = st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1)
cursors = st.builds(Cursor, _offsets, _offsets, _offsets, _optional, st.integers(0, 2**32 - 1), _optional)

_counts = st.integers(0, 2**63)
_reasons = st.dictionaries(st.sampled_from(["empty", "min_chars", "skipped", "too_large"]), _counts).map(Counter)
_amounts = st.builds(Amount, _counts, _counts)
_lengths = st.dictionaries(st.integers(0, 63), _counts, max_size=4).map(Counter)
_steps = st.builds(
    StepFigures,
    st.sampled_from(["regex", "regex_2", "language"]),
    _amounts,
    _amounts,
    st.dictionaries(st.sampled_from(["regex.matched", "empty"]), _amounts),
    _amounts,
)
_languages = st.dictionaries(st.sampled_from(["de", "en"]), _amounts)
_several = st.lists(_steps, min_size=1, unique_by=lambda step: step.step)
figures = st.builds(Figures) | st.builds(Figures, _several, _lengths, _lengths, _languages)
totals = st.builds(Totals, *[_counts] * 5, _reasons, _reasons, _counts, _counts, figures)
"""Any totals; whether they balance is another matter."""

pieces = st.builds(Piece, st.integers(0, 2**32 - 1), _offsets, _optional, st.binary(max_size=20))
"""Any piece that its row has room for."""
