"""A checker written from docs/record_to_tokens.md alone: what becomes of a record, and the ids of a text.

It uses the standard library, and `tokenizers` for ids; nothing of TokenMill. `tests/docs/test_record_page.py` holds it
against the product, and tests of decoders, splits and outcomes have their right answers from it.
"""

import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import md5
from typing import Any, NamedTuple

from tokenizers import Tokenizer

BOM = b"\xef\xbb\xbf"
WHITE = {*range(9, 14), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F}
WHITE.add(0x3000)
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
ESCAPE = re.compile(rb"\\(u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
NUMBER = r"-?\d+(\.\d*)?([eE][+-]?\d*)?"
ABSENT = object()


class Refused(Exception):  # noqa: N818 - the page's word
    pass


class PlainDocument(NamedTuple):
    text: str
    id: str | int | None = None
    fields: Mapping[str, Any] = {}


class PlainOutcome(NamedTuple):
    """What becomes of a record, its split, its reason, and its document after the steps."""

    kind: str
    split: str | None = None
    reason: str = ""
    document: PlainDocument | None = None


@contextmanager
def deep() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError(number)
    return value


def integer(number: str) -> int:
    finite(number)
    return int(number)


def no_constant(name: str) -> None:
    raise ValueError(name)


def strict_json(value: bytes) -> Any:
    """Return what RFC 8259 and the page make of a value, integers exact."""
    with deep():
        return json.loads(value.decode(), parse_float=finite, parse_int=integer, parse_constant=no_constant)


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Refused("invalid_utf8") from None


def has_half_pair(value: bytes) -> bool:
    """Tell whether a value is JSON but for halves of pairs; of what `ESCAPE` finds these alone have six bytes."""
    mended = ESCAPE.sub(lambda found: rb"\ufffd" if len(found[0]) == 6 else found[0], value)
    try:
        strict_json(mended)
    except ValueError:
        return False
    return mended != value


def is_object_in_string(value: bytes) -> bool:
    head = re.sub(rb"\\[tnr]|\\u00(20|0[9aAdD])", b" ", value[:4000]).replace(rb"\u0022", b'\\"')
    return re.match(rb'"[\t\n\r \[]*\{[\t\n\r ]*(\\"|\})', head) is not None


def is_scalar(value: bytes) -> bool:
    """Tell whether a value is JSON, and neither an object nor an array: a number of any size, or one that is none."""
    if re.fullmatch(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", value):
        return True
    try:
        return value in (b"NaN", b"Infinity", b"-Infinity") or not isinstance(strict_json(value), dict | list)
    except ValueError:
        return False


def like_json(value: bytes) -> bool:
    rest = re.sub(rb"\A(?:[\t-\r ]|\xef\xbb\xbf)*", b"", value).decode("latin-1")
    if not rest.startswith("["):
        return rest.startswith("{")
    inside = re.sub(r"\A[\t-\r \[]*", "", rest, flags=re.ASCII)
    cut_off = {"-", *(word[:length] for word in ("true", "false", "null") for length in range(1, 5))}
    if inside[:1] in {"", "{", '"', "]"} or inside in cut_off:
        return True
    word = re.match(f"(?:{NUMBER}|true|false|null)[\t-\r ]*", inside, re.ASCII)
    return word is not None and inside[word.end() :][:1] in {"", ",", "]"}


class PlainRules:
    """Computes outcomes by a recipe, which is what `stream.json` has under ``genesis`` and ``recipe``."""

    def __init__(self, recipe: Mapping[str, Any], tokenizer: bytes | None = None) -> None:
        self.recipe = recipe
        limits = [step["max_bytes"] for step in recipe.get("steps", ()) if step["name"] == "normalized_length"]
        self.normalized_length = limits[0] if limits else None
        self.normalizer = lengthening_normalizer(tokenizer) if tokenizer else None

    def outcome(self, value: bytes | None, *, flush: bool = False, skipped: bool = False) -> PlainOutcome:
        if value is None:
            return PlainOutcome("flush" if flush and self.recipe.get("allow_flush", True) else "tombstone")
        if skipped:
            return PlainOutcome("dead_lettered", self.split(value), "skipped")
        try:
            document = getattr(self, self.recipe["decode"])(value)
        except Refused as reason:
            return PlainOutcome("dead_lettered", self.split(value), str(reason))
        split = self.split(self.key(document))
        return PlainOutcome("other_split") if split is None else self.stepped(split, document)

    def stepped(self, split: str, document: PlainDocument) -> PlainOutcome:
        if self.recipe["normalize"] != "none":
            document = document._replace(text=unicodedata.normalize(self.recipe["normalize"], document.text))
        if all(ord(character) in WHITE for character in document.text):
            return PlainOutcome("filtered", split, "empty")
        if len(document.text) < self.recipe["min_chars"]:
            return PlainOutcome("filtered", split, "min_chars")
        if self.normalized_length is not None and self.normalized_bytes(document.text) > self.normalized_length:
            return PlainOutcome("dead_lettered", split, "normalized_too_large")
        return PlainOutcome("kept", split, "", document)

    def normalized_bytes(self, text: str) -> int:
        if len(text) <= 65_536:
            return 0
        slices = [text[begin : begin + 65_536] for begin in range(0, len(text), 65_536)]
        return sum(len((self.normalizer.normalize_str(one) if self.normalizer else one).encode()) for one in slices)

    def key(self, document: PlainDocument) -> bytes:
        by_id = self.recipe["split_by"] == "id" and document.id is not None
        return str(document.id if by_id else document.text).encode()

    def split(self, key: bytes) -> str | None:
        splits = self.recipe["splits"]
        if len(splits) == 1 and splits[0][1] == self.recipe["shards"]:
            return str(splits[0][0])
        shard = int.from_bytes(md5(key).digest(), "big") % self.recipe["shards"]  # noqa: S324 - the page names it
        owners = [name for name, size in splits for _ in range(size)]
        return owners[shard] if shard < len(owners) else None

    def text(self, value: bytes) -> PlainDocument:
        value = value.removeprefix(BOM)
        document = PlainDocument(utf8(value))
        if len(value) > self.recipe["max_text_bytes"]:
            raise Refused("too_large")
        return document

    def auto(self, value: bytes) -> PlainDocument:
        if like_json(value):
            return self.json(value)
        if value[:1] == b"\0":
            raise Refused("schema_registry_framing" if len(value) >= 5 else "control_characters")
        scalar = re.sub(rb"\A(?:[\t\n\r ]|\xef\xbb\xbf)*", b"", value).rstrip(b"\t\n\r ")
        if has_half_pair(scalar) and scalar[:1] == b'"':
            raise Refused("invalid_unicode")
        if is_scalar(scalar) or is_object_in_string(scalar):
            raise Refused("not_an_object")
        document = self.text(value)
        odd = [byte for byte in value[:256] if byte < 32 and byte not in (9, 10, 12, 13)]
        if 0 in value or (value and len(odd) / min(256, len(value)) >= 0.25):
            raise Refused("control_characters")
        return document

    def json(self, value: bytes) -> PlainDocument:
        value = value.removeprefix(BOM)
        utf8(value)
        depth = deepest = 0
        for byte in STRING.sub(b"", value):
            depth += (byte in b"[{") - (byte in b"]}")
            deepest = max(deepest, depth)
        if sum(STRING.sub(b"", value).count(byte) for byte in (b",", b"[", b"{")) > 1_000_000 < len(value):
            raise Refused("too_many_values")
        if deepest > 1024:
            raise Refused("too_deep")
        if has_half_pair(value):
            raise Refused("invalid_unicode")
        try:
            found = strict_json(value)
        except ValueError:
            raise Refused("malformed_json") from None
        if not isinstance(found, dict):
            raise Refused("not_an_object")
        return self.object(found)

    def object(self, value: dict[str, Any]) -> PlainDocument:
        found = [self.field(value, name) for name in self.recipe["text_fields"]]
        text = next((field for field in found if isinstance(field, str)), None)
        if text is None:
            raise Refused(self.without_text(value, found))
        if len(text.encode()) > self.recipe["max_text_bytes"]:
            raise Refused("too_large")
        name = self.field(value, self.recipe["id_field"])
        if type(name) is int:
            self.in_range(name)
        elif not (isinstance(name, str) and name):
            name = None
        quotes = 2 if isinstance(name, str) else 0
        if name is not None and len(canonical(name)) - quotes > self.recipe["max_id_bytes"]:
            raise Refused("id_too_long")
        return PlainDocument(text, name, self.carried(value))

    def carried(self, value: dict[str, Any]) -> dict[str, Any]:
        fields = {name: self.field(value, name) for name in self.recipe["metadata_fields"]}
        fields = {name: field for name, field in fields.items() if field is not ABSENT}
        for field in fields.values():
            if isinstance(field, (list, dict)):
                raise Refused("wrong_type")
            if type(field) is int:
                self.in_range(field)
        if fields and len(canonical(fields)) > self.recipe["max_fields_bytes"]:
            raise Refused("fields_too_long")
        return fields

    def without_text(self, value: dict[str, Any], found: list[Any]) -> str:
        if any(field is not ABSENT for field in found):
            return "wrong_type"
        events = (value, value.get("payload"))
        is_event = any(isinstance(event, dict) and self.is_change(event) for event in events)
        return "debezium_envelope" if is_event else "missing_text"

    @staticmethod
    def is_change(value: dict[str, Any]) -> bool:
        return value.get("op") in ("c", "u", "d", "r", "t") and ("before" in value or "after" in value)

    @staticmethod
    def in_range(value: int) -> None:
        if not -(2**63) <= value <= 2**64 - 1:
            raise Refused("integer_out_of_range")

    @staticmethod
    def field(value: dict[str, Any], name: str) -> Any:
        if name in value:
            return value[name]
        found: Any = value
        for part in name.split("."):
            if not isinstance(found, dict) or part not in found:
                return ABSENT
            found = found[part]
        return found

    def meta(self, document: PlainDocument) -> bytes:
        parts = {"id": document.id, "fields": dict(document.fields)}
        parts = {name: part for name, part in parts.items() if part not in (None, {})}
        return canonical(parts) if parts else b""


def lengthening_normalizer(tokenizer: bytes) -> Any:
    """Return the tokenizer's normalizer without the parts that do not count; None where none is left."""
    file = json.loads(tokenizer)
    whole = file["normalizer"] or {"type": "Sequence", "normalizers": []}
    parts = whole["normalizers"] if whole["type"] == "Sequence" else [whole]
    left = []
    for part in parts:
        if part["type"] in {"ByteLevel", "Lowercase", "Prepend", "Strip", "StripAccents"}:
            continue
        if part["type"] == "Replace" and len(part["content"]) <= len(part["pattern"].get("String", "")):
            continue
        left.append(part)
    if not left:
        return None
    file["normalizer"] = {"type": "Sequence", "normalizers": left}
    return Tokenizer.from_str(json.dumps(file)).normalizer


class PlainTokenizer:
    def __init__(self, content: bytes, recipe: Mapping[str, Any] | None = None) -> None:
        self.recipe = recipe or {}
        self.found = self.recipe.get("special_tokens_in_text") == "tokens"
        self.tokenizer = Tokenizer.from_str(content.decode())
        self.tokenizer.encode_special_tokens = not self.found
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self.tokenizer.get_added_tokens_decoder()
        model = json.loads(content)["model"]
        unknown: set[int | None] = set(self.tokenizer.encode("\ue000\U0010fffd", add_special_tokens=False).ids)
        unknown |= {model.get("unk_id"), self.tokenizer.token_to_id(model.get("unk_token") or "")}
        fallback = range(256) if model.get("byte_fallback") else ()
        unknown |= {self.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in fallback}
        self.special = {number: token.content for number, token in added.items() if token.special}
        self.special = {number: name for number, name in self.special.items() if number not in unknown}

    def spelled(self, number: int) -> list[int]:
        name = self.special.get(number, "")
        for cut in range(1, len(name)):
            ids = [token.id for part in (name[:cut], name[cut:]) for token in self.tokenizer.model.tokenize(part)]
            if not set(ids) & set(self.special):
                return ids
        return [number]

    def ids(self, text: str) -> list[int]:
        try:
            found = self.tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise Refused("tokenizer_failed") from None
            raise
        return found if self.found else [n for number in found for n in self.spelled(number)]

    def blocks(self, text: str) -> tuple[str, list[list[int]]]:
        """Return why the packing drops a document, and the ids of its blocks without padding: of rows and chunks."""
        ids, document = self.ids(text), self.document(text)
        said, size = self.recipe.get("packing_parameters", {}), self.recipe["block_tokens"]
        if self.recipe["packing"] == "chunks":
            step = said.get("chunk_tokens", 5120)
            starts = [0, *(k * step for k in range(1, len(document)) if k * step + 1 < len(document))]
            chunks = [document[start : start + step + 1] for start in starts]
            if said.get("rest", "drop") == "drop":
                chunks = [chunk for chunk in chunks if len(chunk) == step + 1]
            return ("" if chunks else "too_short"), chunks
        before = len(self.recipe.get("begin_of_document", []))
        after = len(document) - before - len(ids)
        room = size - before - after
        if said.get("long") == "drop" and len(ids) > room:
            return "too_long", []
        if said.get("short") == "drop" and len(ids) < room:
            return "too_short", []
        parts = [ids[start : start + room] for start in range(0, len(ids), room)]
        parts = parts if said.get("long") == "split" else parts[:1]
        if said.get("short") == "drop":
            parts = [part for part in parts if len(part) == room]
        return "", [[*document[:before], *part, *document[len(document) - after :]] for part in parts]

    def document(self, text: str) -> list[int]:
        end = self.recipe["end_of_document"]
        return [*self.recipe.get("begin_of_document", []), *self.ids(text), *(end if isinstance(end, list) else [end])]
