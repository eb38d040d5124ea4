"""The table of bad inputs: what producers send that is no plain document, and what becomes of it in each mode."""

import gzip
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.mills import SILENT

MAX_TEXT_BYTES: Final = 300_000
MAX_ID_BYTES: Final = 256


class ExpectedOutcome(NamedTuple):
    kind: str
    """``kept``, ``filtered``, ``dead_lettered``, ``tombstone`` or ``flush``."""
    what: str = ""
    """The text that is kept, or the reason."""


class BadInput(NamedTuple):
    name: str
    value: bytes | None
    json: ExpectedOutcome
    """In mode ``json``, and the next one in mode ``auto``."""
    auto: ExpectedOutcome
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 1_000


def _kept(text: str) -> ExpectedOutcome:
    return ExpectedOutcome("kept", text)


def _dead(reason: str) -> ExpectedOutcome:
    return ExpectedOutcome("dead_lettered", reason)


EMPTY: Final = ExpectedOutcome("filtered", "empty")
FLUSH: Final = ExpectedOutcome("flush")


def _text(name: str, value: bytes, reason: str) -> BadInput:
    return BadInput(name, value, _dead(reason), _kept(value.decode()))


def _framed(name: str, value: bytes, reason: str) -> BadInput:
    return BadInput(name, b"\0\0\0\0\x07" + value, _dead(reason), _dead("schema_registry_framing"))


def _document(name: str, value: bytes, text: str, **others: int) -> BadInput:
    return BadInput(name, value, _kept(text), _kept(text), **others)  # type: ignore[arg-type]


def _refused(name: str, value: bytes, reason: str) -> BadInput:
    return BadInput(name, value, _dead(reason), _dead(reason))


def _object(**fields: object) -> bytes:
    return json.dumps(fields).encode()


ODD_TEXT: Final = "NUL \0, CRLF \r\n, NFD e\u0301, zero width \u200b, right to left \u202eabc\u202c, 🙂"

TABLE: Final = (
    BadInput("tombstone", None, ExpectedOutcome("tombstone"), ExpectedOutcome("tombstone"), key=b"only a key"),
    BadInput("flush", None, FLUSH, FLUSH, key=b"", headers=[("tokenmill", b"flush")]),
    BadInput("empty value", b"", _dead("malformed_json"), EMPTY),
    BadInput("white space", b" \t\r\n ", _dead("malformed_json"), EMPTY),
    BadInput("empty text", b'{"text": ""}', EMPTY, EMPTY),
    BadInput("text of white space", b'{"text": " \\n\\u2003"}', EMPTY, EMPTY),
    _refused("empty object", b"{}", "missing_text"),
    _refused("invalid UTF-8", b"\xff\xfe\x00", "invalid_utf8"),
    _refused("invalid UTF-8 in a string", b'{"text": "caf\xe9"}', "invalid_utf8"),
    _refused("a surrogate in UTF-8", b'{"text": "\xed\xa0\x80"}', "invalid_utf8"),
    _document("byte order mark", b'\xef\xbb\xbf{"text": "marked"}', "marked"),
    BadInput("byte order mark, text", b"\xef\xbb\xbfmarked", _dead("malformed_json"), _kept("marked")),
    _refused("truncated", b'{"text": "a', "malformed_json"),
    _refused("trailing garbage", b'{"text": "a"} and more', "malformed_json"),
    _refused("raw control character", b'{"text": "a\x01b"}', "malformed_json"),
    _refused("unescaped newline", b'{"text": "a\nb"}', "malformed_json"),
    _refused("scalar", b"42", "not_an_object"),
    _refused("string", b'"a text"', "not_an_object"),
    _refused("array", b'[{"text": "a"}]', "not_an_object"),
    _refused("200,000 brackets", b"[" * 200_000, "too_deep"),
    _refused("deep objects", b'{"a":' * 40_000, "too_deep"),
    _refused("huge integer", b'{"text": "a", "n": ' + b"9" * 5_000 + b"}", "malformed_json"),
    _refused("huge float", b'{"text": "a", "n": 1e400}', "malformed_json"),
    _refused("not a number", b'{"text": "a", "n": NaN}', "malformed_json"),
    _document("key twice", b'{"text": "a", "text": "b"}', "b"),
    _refused("half a surrogate pair", b'{"text": "\\ud800"}', "invalid_unicode"),
    _refused("text is a number", b'{"text": 5}', "wrong_type"),
    _refused("text is null", b'{"text": null}', "wrong_type"),
    _refused("text is a list", b'{"text": ["a", "b"]}', "wrong_type"),
    _document("special tokens", b'{"text": "<|endoftext|><s>"}', "<|endoftext|><s>"),
    _document("odd characters", _object(text=ODD_TEXT), ODD_TEXT),
    _refused("too long", _object(text="a" * (MAX_TEXT_BYTES + 1)), "too_large"),
    BadInput("too long, text", b"a" * (MAX_TEXT_BYTES + 1), _dead("malformed_json"), _dead("too_large")),
    _document("no white space", _object(text="x" * MAX_TEXT_BYTES), "x" * MAX_TEXT_BYTES),
    _document("one word again and again", _object(text="word " * 20_000), "word " * 20_000),
    _document("one character", _object(text="a"), "a"),
    _document("other field", _object(content="b"), "b"),
    _refused("Debezium envelope", _object(payload={"op": "c", "after": {"body": "a row"}}), "debezium_envelope"),
    _refused("Debezium delete", _object(op="d", before={"body": "a row"}, after=None), "debezium_envelope"),
    _framed("Avro of a schema registry", b"\x0ehello, world", "malformed_json"),
    _framed("Protobuf of a schema registry", b"\0\x0a\x05hello\xff", "invalid_utf8"),
    _framed("JSON of a schema registry", b'{"text": "framed"}', "malformed_json"),
    BadInput("NUL in a text", b"some text\0", _dead("malformed_json"), _dead("control_characters")),
    BadInput("control characters", bytes(range(1, 32)), _dead("malformed_json"), _dead("control_characters")),
    BadInput("UTF-16", "text".encode("utf-16-le"), _dead("malformed_json"), _dead("control_characters")),
    _refused("code", b"{ int x; }", "malformed_json"),
    _refused("dict of Python", b"{'text': 'a'}", "malformed_json"),
    _text("Markdown", b"[link](https://example.org) and more", "malformed_json"),
    _refused("integer of 65 bits as id", b'{"text": "a", "id": 18446744073709551616}', "integer_out_of_range"),
    _refused("nested text", b'{"document": {"text": "a"}}', "missing_text"),
    _document("no id", _object(text="c", id=None), "c"),
    _document("id of another type", _object(text="d", id=[1]), "d"),
    _document("number as id", _object(text="e", id=7), "e"),
    _document("same id again", _object(text="f", id=7), "f"),
    _document("path as id", _object(text="g", id="../../etc/passwd\n🙂"), "g"),
    _refused("huge id", _object(text="h", id="x" * 1_000_000), "id_too_long"),
    _refused("gzip", gzip.compress(b'{"text": "a"}', mtime=0), "invalid_utf8"),
    _document("no timestamp", _object(text="i"), "i", timestamp=-1),
    _document("timestamp zero", _object(text="j"), "j", timestamp=0),
    _document("far future", _object(text="k"), "k", timestamp=253_402_300_800_000),
    _refused("header bomb", b"\xff", "invalid_utf8")._replace(
        headers=[(f"header {n}", b"x" * 100) for n in range(500)]
    ),
    _refused("headers of a dead letter", b"\xfe", "invalid_utf8")._replace(
        headers=[("tokenmill.dead-letter.offset", b"0"), ("tokenmill.dead-letter.reason", b"forged")]
    ),
    BadInput("flush with a value", b'{"text": "l"}', _kept("l"), _kept("l"), headers=[("tokenmill", b"flush")]),
)

SILENT_ROW: Final = _document("no tokens", _object(text=SILENT), SILENT)
