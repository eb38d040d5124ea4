"""From an object, a row or a text to a record: which field is the text, what goes with it, and what is left out."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from tokenmill.documents import INTEGERS, MAX_TEXT_BYTES, OVER_A_LIMIT, Limits
from tokenmill.errors import InputError, RecordError

from ..milling.decoding.plain_values import check_integer, check_plain, quoted_path, refusal
from ..milling.decoding.protocol import INTEGER_OUT_OF_RANGE, WRONG_TYPE
from .conditions import Condition, Finder, Row, columns_of, finder, word
from .encodings import UTF_8, why_no_text, why_not
from .items import BEFORE, MAX_RECORD, Item, PlaceIds, Refused, Unmet, fit_id, id_bytes

if TYPE_CHECKING:  # processes of `pack` make documents, and need no settings
    from ..settings import TopicSettings

_INT_ID: Final = 4  # from this `Shape.quick_id` on, any integer of 64 bits fits: it has 20 digits
_FRAME: Final = b',"":""}'  # what is beside id and name where an id is added to an object
NO_OBJECT: Final = "not_an_object: a JSON value, but not an object; jq -c '{text: .}' makes one of a text"


@dataclass(frozen=True, slots=True)
class Shape:
    """How documents of one topic are made of objects, rows and texts; made by `shape_for`."""

    limits: Limits
    noted_text_bytes: int
    """`Limits.max_text_bytes` as runs note it; the limit without a tokenizer."""
    text_field: str
    id_field: str
    max_record_bytes: int
    plain: bool
    as_is: bool
    """JSON objects are sent byte for byte."""
    texts: tuple[tuple[str, Finder], ...]
    id_from: str
    id: Finder
    metadata_fields: tuple[tuple[str, Finder], ...]
    where: tuple[Condition, ...]
    key: tuple[str, Finder] | None
    id_room: int = -1
    """Bytes of the largest JSON object that gets its place as id, if it has none: others would be too long with it."""
    quick_id: int = 0
    """Characters of an id that is short enough without counting its bytes; 0: `quick` decides nothing."""
    columns: frozenset[str] = field(default=frozenset())
    asked: bool = False
    """Whether somebody said where the id is."""
    nan_is_null: bool = False
    judged: bool = False
    """Whether the mill judges by a value's beginning whether it is a text."""
    given: dict[str, str | None] = field(default_factory=dict)
    """Columns that all rows have which do not have them themselves."""

    @property
    def ids(self) -> PlaceIds:
        """What gives documents their places as ids."""
        return PlaceIds(self.id_field, self.limits.max_id_bytes)

    def within(self, given: Mapping[str, str | None]) -> "Shape":
        """Return how documents are made of rows that have these columns in common."""
        wanted = {name: value for name, value in given.items() if name in self.columns}
        if not wanted:
            return self
        carried = any(name in wanted for name, _ in self.metadata_fields)
        return replace(self, given=wanted, as_is=self.as_is and not carried, quick_id=0)

    def deciding(self) -> dict[str, object]:
        """Return what decides what is sent, as JSON types: equal for shapes that send the same."""
        limits = [self.max_record_bytes, self.noted_text_bytes, self.limits.max_id_bytes, self.limits.max_fields_bytes]
        return {
            "names": [self.text_field, self.id_field, *(name for name, _ in self.texts), self.id_from],
            "metadata_fields": [name for name, _ in self.metadata_fields],
            "where": [condition.deciding() for condition in self.where],
            "key": None if self.key is None else self.key[0],
            "kind": [self.plain, self.as_is],
            "limits": limits,
            **({"nan": None} if self.nan_is_null else {}),
        }

    def quick(self, data: bytes) -> Item | None:
        """Return what `of_json` does, for an ordinary object that is sent as it is; None: call `of_json`."""
        if not self.quick_id:
            return None
        try:
            row = orjson.loads(data)
        except orjson.JSONDecodeError:
            return None
        if type(row) is not dict or len(data) > self.limits.max_text_bytes:
            return None
        text, name = row.get(self.text_field), row.get(self.id_field)
        if type(text) is not str:
            text = next((found for _, find in self.texts if type(found := find(row)) is str), None)
        whole = type(name) is int
        if type(name) is float or (self.asked and type(name) not in (str, int)) or (whole and self.quick_id < _INT_ID):
            return None
        if type(name) is str and len(name) > self.quick_id and id_bytes(name) > self.limits.max_id_bytes:
            return None
        named = whole or (type(name) is str and name != "")
        return None if text is None else Item(data, text, needs_id=not named and len(data) <= self.id_room)

    def of_json(self, where: str, data: bytes) -> Item | Refused | Unmet:
        """Return the document that the bytes of a JSON object are; `Unmet` if it is not wanted."""
        try:
            row = orjson.loads(data)
        except orjson.JSONDecodeError:
            if data[:1] in BEFORE and (rest := data.lstrip(BEFORE)) != data:
                return self.of_json(where, rest)
            made = without_nan(data)
            if made and self.nan_is_null:
                return self.of_json(where, made)
            advice = "; --nan-as-null reads NaN and Infinity" if made else _several(data)
            return Refused(where, f"{refusal(data)}{advice}", data)
        if type(row) is not dict:
            return Refused(where, NO_OBJECT, data)
        row = {**self.given, **row} if self.given else row
        if self.as_is:
            return self._as_it_is(where, row, data)
        return self.of_row(where, row, "", data)

    def of_row(self, where: str, row: Row, name: str, data: bytes = b"") -> Item | Refused | Unmet:
        """Return the document that a row is, or `Unmet`; ``name``: its id if it has none, empty where it needs one."""
        row = {**self.given, **row} if self.given and not data else row
        try:
            if self.where and (unwanted := self._unwanted(row)):
                return unwanted
            text = self._text(row)
            self._check_integers(row, data)
            own = self._name(row)
            made = self._made(where, row, text, name if own is None else own)
            return self._told(made, row) if own is None and isinstance(made, Item) else made
        except RecordError as error:
            return _refused(where, error, data)
        except (orjson.JSONEncodeError, UnicodeEncodeError):
            name = next(name for name, find in self.texts if type(find(row)) is str)
            return Refused(where, f"invalid_utf8: {name!r} has half a character (a surrogate)", data)

    def of_text(self, where: str, name: str, data: bytes) -> Item | Refused | Unmet:
        """Return the document of a text: ``{"id": name, "text": …}``, or with ``plain`` the text as it is."""
        if why := why_no_text(data):
            return Refused(where, why, data)
        try:
            text = data.decode().lstrip("\ufeff")
            row = {**self.given, self.id_field: name, self.text_field: text}
            if self.where and (unwanted := self._unwanted(row)):
                return unwanted
            return self._made(where, row, text, name)
        except UnicodeDecodeError as error:
            return Refused(where, why_not(UTF_8, data, error), data)
        except RecordError as error:
            return _refused(where, error, data)

    def too_long(self, where: str) -> Refused:
        """Return the refusal of what is longer than a record may be."""
        return Refused(where, f"longer than {self.max_record_bytes} bytes ({MAX_RECORD})", limit=MAX_RECORD)

    def _as_it_is(self, where: str, row: dict[str, Any], data: bytes) -> Item | Refused | Unmet:
        """Return the object's own bytes, after checking that the mill takes them as a document."""
        try:
            if self.where and (unwanted := self._unwanted(row)):
                return unwanted
            text = self._text(row)
            if len(data) > self.limits.max_text_bytes:  # UTF-8 is never longer than the same text in JSON
                self.limits.check_text(text)
            self._check_integers(row, data)
            name = self._name(row)
            if self.asked and name is not None and type(self.id(row)) is float:
                return self.of_row(where, row, "", data)
            self.limits.check_id(name)
            if self.metadata_fields:
                self._carried(row)
            item = Item(data, text, None if self.key is None else self._key(row, name))
            if name is not None:
                return item
            item = item._replace(needs_id=len(data) <= self.id_room)
            return self._told(item, row) if self.asked else item
        except RecordError as error:
            return _refused(where, error, data)

    def _name(self, row: Row) -> str | int | None:
        """Return the id that a row has: a text or a whole number, also one that became a float; None: it has none."""
        found = self.id(row)
        try:
            if found is None or found != found:  # noqa: PLR0124 - NaN, and its like of other libraries, are null
                return None
            found = _scalar(self.id_from, found)
        except RecordError as error:
            if error.reason == INTEGER_OUT_OF_RANGE:
                raise
            return None
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - of comparing: a signaling NaN, an array, what a function of theirs made
            return None
        if type(found) is float and found.is_integer() and abs(found) <= 2**53:  # each is a number of its own
            return int(found)
        return found if type(found) is int or (type(found) is str and found) else None

    def _told(self, item: Item, row: Row) -> Item:
        """Return a document without an id of its own, marked where somebody would not expect that."""
        return item._replace(unnamed=self.asked or self.id(row) is not None)

    def _check_integers(self, row: Row, data: bytes) -> None:
        for name, find in ((self.id_from, self.id), *self.metadata_fields) if data else ():
            if type(value := find(row)) is float:
                check_integer(f"{name!r}", name, value, data)

    def _unwanted(self, row: Row) -> Unmet | None:
        for condition in self.where:
            try:
                if not condition.holds(row):
                    return Unmet(1, int(condition.missing(row)))
            except MemoryError:
                raise
            except Exception as error:  # - a function of the user's own may have put anything there
                raise RecordError(WRONG_TYPE, f"{condition.field!r} cannot be compared: {error}") from error
        return None

    def _made(self, where: str, row: Row, text: str, name: str | int) -> Item | Refused:
        self.limits.check_text(text)
        if isinstance(name, str):
            name = fit_id(name, self.limits.max_id_bytes)
        key = None if self.key is None else self._key(row, name)
        if self.plain:
            value = text.encode()
            if self.judged:
                check_plain(value)
        else:
            made: dict[str, Any] = {self.id_field: name} if name != "" else {}
            made[self.text_field] = text
            if self.metadata_fields:
                made |= self._carried(row)
            value = orjson.dumps(made)
        if len(value) > self.max_record_bytes:
            return self.too_long(where)
        return Item(value, text, key, needs_id=name == "" and len(value) <= self.id_room)

    def _text(self, row: Row) -> str:
        wrong = None
        for name, find in self.texts:
            text = find(row)
            if type(text) is str:
                return text
            if isinstance(text, bytes):
                return _decoded(name, text)
            wrong = wrong or (name if text is not None or name in row else None)
        if wrong:
            found = dict(self.texts)[wrong](row)
            how = "; --map MODULE:FUNCTION makes one text of its parts" if isinstance(found, (list, dict)) else ""
            raise RecordError("wrong_type", f"{wrong!r} is {_kind(found)}, not a string{how}")
        lacks = f"no field {' or '.join(repr(name) for name, _ in self.texts)}"
        if meant := next(filter(None, (quoted_path(row, name) for name, _ in self.texts)), None):
            raise RecordError("missing_text", f"{lacks}; a name with a dot stands in quotes: --field '{meant}'")
        there = ", ".join(ascii(name)[:60] for name in list(row)[:8]) or "no fields"
        inner = any(isinstance(row.get(re.split(r"[.\[]", name)[0]), (list, dict)) for name, _ in self.texts)
        how = ", or make it of its parts: --map MODULE:FUNCTION" if inner else ""
        raise RecordError("missing_text", f"{lacks}; there are: {there}; say which is the text: --field{how}")

    def _carried(self, row: Row) -> dict[str, Any]:
        found = {name: _scalar(name, find(row)) for name, find in self.metadata_fields}
        fields = {name: value for name, value in found.items() if value is not None}
        for name, value in found.items():
            if isinstance(value, (dict, list)):
                raise RecordError(WRONG_TYPE, f"the carried field {name!r} is an array or an object, not one value")
            if type(value) is float and not isfinite(value):
                if not self.nan_is_null:
                    raise RecordError(
                        WRONG_TYPE, f"the carried field {name!r} is {value}, which JSON has not; as null: --nan-as-null"
                    )
                del fields[name]
        self.limits.check_fields(fields)
        return fields

    def _key(self, row: Row, name: object) -> bytes:
        wanted, find = self.key or ("", lambda _: None)
        value = _scalar(wanted, name if wanted == self.id_field and name not in ("", None) else find(row))
        if value is None or isinstance(value, (dict, list)):
            raise RecordError("no_key", f"no field {wanted!r} for the key")
        return word(value).encode()


def _refused(where: str, error: RecordError, data: bytes) -> Refused:
    return Refused(where, str(error), data, limit=OVER_A_LIMIT.get(error.reason, ""))


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"{name!r} is not UTF-8: {error.reason} at byte {error.start}") from error


def _scalar(name: str, value: Any) -> Any:
    """Return a value of a row as JSON has it: other types as text; RecordError where one has no such form."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, float, dict, list)):
        return value
    if isinstance(value, int):
        if value in INTEGERS:
            return value
        raise RecordError(INTEGER_OUT_OF_RANGE, f"{name!r} is an integer beyond 64 bits: make it a text")
    if isinstance(value, bytes):
        return _decoded(name, value)
    try:
        return str(value).encode().decode()
    except UnicodeEncodeError as error:
        raise RecordError("invalid_utf8", f"{name!r} has half a character (a surrogate)") from error
    except MemoryError:
        raise
    except Exception as error:  # - a function of the user's own may have put anything there
        raise RecordError(WRONG_TYPE, f"{name!r} is {_kind(value)}, which cannot be made text: {error}") from error


def without_nan(data: bytes) -> bytes | None:
    """Return the JSON with null for what Python writes for numbers that are not finite; None where it is none."""
    with suppress(ValueError, TypeError, RecursionError):
        return orjson.dumps(json.loads(data.decode(), parse_constant=lambda _: None))
    return None


def _several(data: bytes) -> str:
    with suppress(ValueError, RecursionError):
        first, end = json.JSONDecoder().raw_decode(text := data.decode())
        if isinstance(first, dict) and text[end:].lstrip(" \t\r").startswith("{"):
            return "; --format json reads several objects on a line"
    return ""


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "true or false", int: "a number", float: "a number", dict: "an object", list: "an array"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """How documents are made, beside the settings of the topic."""

    fields: Sequence[str] = ()
    """Names or dotted paths; the first that holds a string. None: the topic's own."""
    id_field: str | None = None
    """Where the id is; None: where the topic has it."""
    metadata_fields: Sequence[str] | None = None
    """Fields that go with the text; None: the topic's own, and all others of an object that goes as it is."""
    where: Sequence[Condition] = ()
    key: str | None = None
    plain: bool = False
    """Send the text alone: no JSON object around it, no id."""
    nan_as_null: bool = False  # for numbers that are not finite


def shape_for(topic: "TopicSettings", max_record_bytes: int, options: ShapeOptions | None = None) -> Shape:
    """Return how documents for a raw topic are made, by the settings of that topic and the options.

    A topic that is decoded as ``text`` gets plain text whatever the options: JSON would be tokenized as it is. Raises
    InputError where plain texts are asked for, and the topic takes none.
    """
    options = options or ShapeOptions()
    fields = tuple(options.fields) or topic.text_fields
    id_field = topic.id_field if options.id_field is None else options.id_field
    metadata_fields = topic.metadata_fields if options.metadata_fields is None else tuple(options.metadata_fields)
    plain = options.plain or topic.decode == "text"
    if plain and topic.decode == "json":
        raise InputError('a mill with decode = "json" takes objects alone: leave --plain out, or set decode = "text"')
    needed = [*fields, id_field, *metadata_fields, *(condition.field for condition in options.where)]
    needed += [] if options.key is None else [options.key]
    as_is = not plain and fields == topic.text_fields and id_field == topic.id_field and options.metadata_fields is None
    given_id = topic.max_id_bytes + len(topic.id_field) * 6 + len(_FRAME)  # JSON has six bytes a character at most
    ordinary = as_is and not (options.where or options.key or metadata_fields or "." in id_field)
    return Shape(
        limits=topic.limits,
        noted_text_bytes=topic.max_text_bytes or MAX_TEXT_BYTES,
        text_field=topic.text_fields[0],
        id_field=topic.id_field,
        max_record_bytes=max_record_bytes,
        plain=plain,
        as_is=as_is,
        texts=tuple((name, finder(name)) for name in fields),
        id_from=id_field,
        id=finder(id_field),
        metadata_fields=tuple((name, finder(name)) for name in metadata_fields),
        where=tuple(options.where),
        key=None if options.key is None else (options.key, finder(options.key)),
        id_room=-1 if plain or topic.decode not in ("auto", "json") else max_record_bytes - given_id,
        quick_id=topic.max_id_bytes // 6 if ordinary else 0,
        columns=frozenset(column for name in needed for column in columns_of(name)),
        asked=options.id_field is not None,
        nan_is_null=options.nan_as_null,
        judged=plain and topic.decode == "auto",
    )
