"""Mode ``protobuf``: framed values in Protobuf's binary encoding, read by the ``.proto`` file that the registry has.

The id is followed by the index numbers of the message's type in that file. A field is called as in the file. An enum
becomes its value's name, or its number where it has none. A field that is not there is left out, unless its type has a
default, as scalars of proto3 have. Google's compiler describes the messages, in a process of its own.
"""

import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath
from signal import SIGABRT, SIGKILL, SIGTERM
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

import grpc_tools
from google._upb._message import Message as AnyMessage
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from tokenmill.errors import RecordError

from .framed_values import Reader, RegisteredSchema, mismatch
from .protocol import INVALID_UTF8, DecodingRules

MAIN: Final = "tokenmill-registered-schema.proto"
"""The schema's file name while it is compiled; its imports have the names of its references."""
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
"""Clients in Python and Go register a compiled file in base64. Confluent's registry returns the file's text, others
return the base64; no text of a file looks like that."""
_BRACES: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|[{}]""", re.DOTALL)
"""Braces, and what may hold others that do not count: comments and strings."""
_DEEPEST: Final = 100
"""Messages and options in each other. The compiler takes 32 messages, and a gigabyte for each 2,000 that it refuses."""
_LONGEST_NAME, _LONGEST_PATH = 255, 1000  # bytes of a file's name, and of its path, that every file system takes
_ENDED: Final = (-SIGKILL, -SIGTERM, -SIGABRT)
"""How the compiler ends where there is no memory for it, or somebody ends it. Other signals are its own doing."""
_SHOWN_CHARACTERS: Final = 500
_INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"
"""Where Google's own ``.proto`` files are (google/protobuf/timestamp.proto and the like)."""


def compiled(schema: RegisteredSchema) -> FileDescriptor:
    """Return the file that a schema is; ValueError where the compiler refuses it, or lacks what it imports."""
    pool = descriptor_pool.DescriptorPool()
    for file in _compile(schema).file:
        pool.Add(file)
    try:
        return pool.FindFileByName(MAIN)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no Protobuf schema ({error})") from error


def _compile(schema: RegisteredSchema) -> descriptor_pb2.FileDescriptorSet:
    """Run the compiler in a process of its own: it writes its errors to standard error."""
    texts = {name: one.text for name, one in schema.needed().items()}
    _require_names(texts)
    texts[MAIN] = schema.text
    with TemporaryDirectory(prefix="tokenmill-protobuf-") as folder:
        already = descriptor_pb2.FileDescriptorSet()
        sources, given, output = (Path(folder, name) for name in ("sources", "given", "compiled"))
        for name, text in texts.items():
            if _SERIALIZED.fullmatch(text):
                already.file.append(_serialized(name, text))
                continue
            depths = accumulate(1 if brace == "{" else -1 for brace in _BRACES.findall(text) if brace in ("{", "}"))
            if max(depths, default=0) > _DEEPEST:
                raise ValueError(f"it is nested over {_DEEPEST} deep")
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_text(text, "utf-8")
        given.write_bytes(already.SerializeToString())
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc"]
        command += [f"--proto_path={sources}", f"--proto_path={_INCLUDED}"]
        command += [f"--descriptor_set_in={given}", "--include_imports", f"--descriptor_set_out={output}", MAIN]
        done = subprocess.run(command, check=False, capture_output=True, timeout=60)  # the worst takes ten
        said = done.stderr.decode(errors="replace")
        if done.returncode in _ENDED or said.startswith("Traceback"):
            raise ChildProcessError(f"the compiler of .proto files ended with {done.returncode}: {said[-200:]}")
        if done.returncode or not output.exists():
            # about the files, without anything that changes from run to run
            lines = [line for line in said.splitlines() if ".proto:" in line and "parser.cc" not in line]
            about = "; ".join(lines).replace(f"{sources}/", "")[:_SHOWN_CHARACTERS] or "the compiler failed"
            raise ValueError(f"it is no Protobuf schema ({about})")
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def _serialized(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (DecodeError, ValueError) as error:
        raise ValueError(f"it is no Protobuf schema ({name}: {error})") from None
    file.name = name
    return file


def _require_names(names: Collection[str]) -> None:
    """Check that files of these names can be written; the compiler takes no other names in imports either."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    for name in names:
        if (
            any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_NAME for part in name.split("/"))
            or "\0" in name
            or len(name.encode()) > _LONGEST_PATH
            or name in folders
            or name == MAIN
        ):
            raise ValueError(f"it imports {name[:_SHOWN_CHARACTERS]!r}, which can be no relative path of a file")


MOST_NUMBERS: Final = 64
"""Deepest nesting of a type that a value may name."""
_ABSENT: Final = object()
_KIND = FieldDescriptor
_ITEM_BYTES: Final = {
    **dict.fromkeys((_KIND.TYPE_DOUBLE, _KIND.TYPE_FIXED64, _KIND.TYPE_SFIXED64), 8),
    **dict.fromkeys((_KIND.TYPE_FLOAT, _KIND.TYPE_FIXED32, _KIND.TYPE_SFIXED32), 4),
    **dict.fromkeys((_KIND.TYPE_STRING, _KIND.TYPE_BYTES, _KIND.TYPE_MESSAGE, _KIND.TYPE_GROUP), 0),
}
"""Bytes of an item where a repeated field has several together; 0 where it never has. Others are numbers of 1 to 10."""
_NOT_LAST: Final = bytes(range(0x80, 0x100))
_NUMBER, _SIZED, _BEGIN, _END = 0, 2, 3, 4
"""How a field's value is encoded, by the lowest three bits of its tag: groups have a beginning and an end ..."""
_SIZES: Final = {1: 8, 5: 4}
"""... and values of a fixed number of bytes."""


def value_reader(schema: RegisteredSchema, rules: DecodingRules) -> Reader:
    """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
    file, types = compiled(schema), dict[str, _Type]()
    found: dict[tuple[int, ...], tuple[type[Message], _Type, int]] = {}

    def value_of(payload: bytes) -> Any:
        path, at = _message_path(payload)
        if path not in found:
            kind = _descriptor(file, path)
            described, made = _described(kind, types), message_factory.GetMessageClass(kind)
            found[path] = made, described, 2 + max(one.width for one in types.values())
        message_of, described, widest = found[path]
        data = payload[at:]
        if widest * (len(data) + 1) > rules.most_values and _has_more(data, described, rules.most_values):
            raise rules.too_many_values()
        message = message_of()
        try:
            AnyMessage.MergeFromString(cast("AnyMessage", message), data)
        except DecodeError as error:
            if "memory" in str(error):
                raise MemoryError(str(error)) from None
            raise mismatch(str(error)[:200]) from None
        return described.plain(message)

    return value_of


class _Field(NamedTuple):
    name: str
    number: int
    message: "_Type | None"
    item_bytes: int  # as in `_ITEM_BYTES`; 0 where it is not repeated
    default: Any  # what it is where a message does not have it; `_ABSENT`: nothing
    plain: Callable[[Any], Any]


@dataclass(slots=True)
class _Type:
    """Its messages are used by `AnyMessage` alone: a file may call a field, a type or a value like any method."""

    name: str
    width: int  # how many values a message of it is, its fields and itself, without what is in these
    fields: list[_Field] = field(default_factory=list)
    numbers: dict[int, _Field] = field(default_factory=dict)  # those of extensions included

    def plain(self, message: Message) -> dict[str, Any]:
        given = {one.number: value for one, value in AnyMessage.ListFields(cast("AnyMessage", message))}
        found = {}
        for one in self.fields:
            value = given.get(one.number, _ABSENT)
            if value is not _ABSENT:
                found[one.name] = one.plain(value)
            elif one.default is not _ABSENT:
                found[one.name] = one.default
        return found


def _described(kind: Descriptor, types: dict[str, _Type]) -> _Type:
    """Return a type; ``types`` has it afterwards, with all that it leads to, by full name."""
    new, left = list[tuple[_Type, Descriptor]](), [kind]
    while left:
        one = left.pop()
        if one.full_name not in types:
            # items of a message set have an encoding of their own, which is not counted
            width = sys.maxsize if one.GetOptions().message_set_wire_format else 1 + len(one.fields)
            types[one.full_name] = _Type(one.full_name, width)
            new.append((types[one.full_name], one))
            left += [part.message_type for part in _all_fields(one) if part.message_type is not None]
    for described, one in new:
        described.fields = [_field(part, types) for part in one.fields]
        described.numbers = {part.number: _field(part, types) for part in _all_fields(one)}
    return types[kind.full_name]


def _all_fields(kind: Descriptor) -> list[FieldDescriptor]:
    return [*kind.fields, *kind.file.pool.FindAllExtensions(kind)]


def _field(one: FieldDescriptor, types: Mapping[str, _Type]) -> _Field:
    message = types[one.message_type.full_name] if one.message_type is not None else None
    item = _plain_one(one, message)
    plain, default = item, _ABSENT
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        inner = one.message_type.fields_by_name["value"]
        entry = _plain_one(inner, types[inner.message_type.full_name] if inner.message_type is not None else None)
        plain, default = lambda values: {str(key): entry(values[key]) for key in values}, {}
    elif one.is_repeated:
        plain, default = lambda values: [item(value) for value in values], []
    elif message is not None and message.name == "google.protobuf.Struct":
        plain = partial(_plain_struct, message)
    elif not one.has_presence:
        default = plain(one.default_value)
    return _Field(one.name, one.number, message, _ITEM_BYTES.get(one.type, 1) * one.is_repeated, default, plain)


def _plain_one(one: FieldDescriptor, message: _Type | None) -> Callable[[Any], Any]:
    if message is not None:
        return message.plain
    if one.enum_type is not None:
        names = {number: value.name for number, value in one.enum_type.values_by_number.items()}
        return lambda number: names.get(number, number)
    return partial(_plain_string, one.name) if one.type == FieldDescriptor.TYPE_STRING else lambda value: value


def _plain_string(name: str, value: str | bytes) -> str:
    if not isinstance(value, str):  # proto2 lets anything through
        raise RecordError(INVALID_UTF8, f"the string {name!r} is no UTF-8")
    return value


def _plain_struct(struct: _Type, message: Message) -> dict[str, Any]:
    """Return Google's message for any JSON object as that object."""
    return {key: _plain_value(value) for key, value in struct.plain(message)["fields"].items()}


def _plain_value(value: Mapping[str, Any]) -> Any:
    for kind, inner in value.items():
        if kind == "list_value":
            return [_plain_value(one) for one in inner["values"]]
        return None if kind == "null_value" else inner
    return None


def _has_more(data: bytes, kind: _Type, most: int) -> bool:
    """Return whether a message holds more values than ``most``, unless it is invalid before so many have come."""
    count, at, ends = kind.width, 0, [(len(data), kind)]
    try:
        while ends and count <= most:
            end, kind = ends[-1]
            if at >= end:
                ends.pop()
                continue
            tag, at = _varint(data, at)
            one, encoded, size = kind.numbers.get(tag >> 3, _UNKNOWN), tag & 7, _SIZES.get(tag & 7, 0)
            count += 1
            if encoded == _NUMBER:
                _, at = _varint(data, at)
            elif encoded == _SIZED:
                size, at = _varint(data, at)
            if encoded == _END:
                ends.pop()
            elif encoded == _BEGIN or (encoded == _SIZED and one.message is not None):
                ends.append((end if encoded == _BEGIN else at + size, one.message or _NOTHING))
                count += ends[-1][1].width
            else:
                count += _items(one, data[at : at + size]) if encoded == _SIZED else 0
                at += size
    except RecordError:
        return False
    return count > most


def _items(one: _Field, data: bytes) -> int:
    return len(data) // one.item_bytes if one.item_bytes > 1 else len(data.translate(None, _NOT_LAST)) * one.item_bytes


_UNKNOWN: Final = _Field("", 0, None, 0, _ABSENT, str)
_NOTHING: Final = _Type("", 0)


def _message_path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the numbers that lead to the message's type (a single zero: the first one), and where it begins."""
    count, at = _index(payload, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MOST_NUMBERS:
        raise mismatch(f"{count} numbers cannot lead to a type")
    path = []
    for _ in range(count):
        number, at = _index(payload, at)
        path.append(number)
    return tuple(path), at


def _varint(data: bytes, at: int, longest: int = 10) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(data[at : at + longest]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has no highest bit
            return number, at + shift + 1
    raise mismatch("a number in them does not end")


def _index(payload: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(payload, at, 5)  # of 32 bits
    return (number >> 1) ^ -(number & 1), at


def _descriptor(file: FileDescriptor, path: tuple[int, ...]) -> Descriptor:
    """Return the type that numbers lead to; those that the compiler makes for maps are not counted, as in Java."""
    kinds = list(file.message_types_by_name.values())
    for depth, number in enumerate(path):
        if not 0 <= number < len(kinds):
            raise mismatch(f"the numbers {list(path)} lead to no type of the schema")
        if depth == len(path) - 1:
            return kinds[number]
        kinds = [kind for kind in kinds[number].nested_types if not kind.GetOptions().map_entry]
    raise mismatch("no numbers lead to a type")
