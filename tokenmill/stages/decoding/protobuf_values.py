"""Mode ``protobuf``: framed values in Protobuf's binary encoding, read by the ``.proto`` file that the registry has.

The id is followed by the index numbers of the message's type in that file. A field is called as in the file. An enum
becomes its value's name, or its number where the file has no name for it. A field that is not there is left out, unless
its type has a default, as scalars of proto3 have.
"""

import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from tokenmill.errors import RecordError
from tokenmill.stages.decoding.framed_values import Reader, RegisteredSchema, mismatch
from tokenmill.stages.decoding.reasons import INVALID_UTF8

MAIN: Final = "tokenmill-registered-schema.proto"
"""The schema's file name while it is compiled; its imports have the names of its references."""
COMPILE_SECONDS: Final = 60
"""A file takes a tenth of a second; if it takes this long, something is wrong on any machine."""
MOST_NUMBERS: Final = 64
"""Deepest nesting of a type that a value may name."""
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
"""Clients in Python and Go register a compiled file in base64. Confluent's registry returns the file's text, others
return the base64; no text of a file looks like that."""
_SHOWN_CHARACTERS: Final = 500
_LONGEST_VARINT: Final = 5
"""Bytes of a number of 32 bits."""
_INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"
"""Where Google's own ``.proto`` files are (google/protobuf/timestamp.proto and the like)."""


class ProtobufFormat:
    """Protobuf, by Google's compiler and library."""

    kind = "PROTOBUF"
    is_json = False

    def reader(self, schema: RegisteredSchema) -> Reader:
        """Return the function that reads the values of a schema; `ValueError` for one that cannot be used."""
        file = compiled(schema)
        classes: dict[tuple[int, ...], type[Message]] = {}

        def value_of(payload: bytes) -> Any:
            path, at = message_path(payload)
            if path not in classes:
                classes[path] = message_factory.GetMessageClass(_descriptor(file, path))
            try:
                return plain(classes[path].FromString(payload[at:]))
            except DecodeError as error:
                raise mismatch(str(error)[:200]) from None

        return value_of


def compiled(schema: RegisteredSchema) -> FileDescriptor:
    """Return the file that a schema is.

    Raises:
        ValueError: the compiler refuses it, or what it imports is not among its references.

    """
    pool = descriptor_pool.DescriptorPool()
    for file in _compile(schema).file:
        pool.Add(file)
    try:
        return pool.FindFileByName(MAIN)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no Protobuf schema ({error})") from error


def _compile(schema: RegisteredSchema) -> descriptor_pb2.FileDescriptorSet:
    """Run the compiler in a process of its own: it writes its errors to standard error."""
    with TemporaryDirectory(prefix="tokenmill-protobuf-") as folder:
        already = descriptor_pb2.FileDescriptorSet()
        for name, text in {MAIN: schema.text, **{name: one.text for name, one in schema.needed().items()}}.items():
            if _SERIALIZED.fullmatch(text):
                already.file.append(_serialized(name, text))
            else:
                _write(Path(folder), name, text)
        given, output = Path(folder, "tokenmill-given"), Path(folder, "tokenmill-compiled")
        given.write_bytes(already.SerializeToString())
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc"]
        command += [f"--proto_path={folder}", f"--proto_path={_INCLUDED}"]
        command += [f"--descriptor_set_in={given}", "--include_imports", f"--descriptor_set_out={output}", MAIN]
        done = subprocess.run(command, check=False, capture_output=True, timeout=COMPILE_SECONDS)
        if done.returncode or not output.exists():
            raise ValueError(f"it is no Protobuf schema ({_complaint(done.stderr.decode(errors='replace'), folder)})")
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def _serialized(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (DecodeError, ValueError) as error:
        raise ValueError(f"it is no Protobuf schema ({name}: {error})") from None
    file.name = name
    return file


def _write(folder: Path, name: str, text: str) -> None:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or "\0" in name:
        raise ValueError(f"it imports {name!r}, which is no relative path")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _complaint(said: str, folder: str) -> str:
    """Return the compiler's message about the files, without anything that changes from run to run."""
    lines = [
        line.replace(f"{folder}/", "") for line in said.splitlines() if ".proto:" in line and "parser.cc" not in line
    ]
    return "; ".join(lines)[:_SHOWN_CHARACTERS] or "the compiler failed"


def message_path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the numbers that lead to the message's type, and where the message begins.

    They are encoded as their count and then each number, as zigzag varints; a single zero means the first type.

    Raises:
        RecordError: the payload does not begin with such numbers.

    """
    count, at = _varint(payload, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MOST_NUMBERS:
        raise mismatch(f"{count} numbers cannot lead to a type")
    path = []
    for _ in range(count):
        number, at = _varint(payload, at)
        path.append(number)
    return tuple(path), at


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(payload[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has no highest bit
            return (number >> 1) ^ -(number & 1), at + shift + 1
    raise mismatch("the numbers that lead to a type end too early")


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


def plain(message: Message) -> dict[str, Any]:
    """Return a message as a mapping of plain values, under the names that the file has.

    Raises:
        RecordError: a string is no UTF-8.

    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        found[field.name] = _field(cast("FieldDescriptor", field), value)
    return found


def _field(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {str(key): _one(inner, value[key]) for key in value}
    if isinstance(value, Mapping):
        return dict(value)
    return [_one(field, one) for one in value] if field.is_repeated else _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):  # proto2 lets anything through
        raise RecordError(INVALID_UTF8, f"the string {field.name!r} is no UTF-8")
    return value
