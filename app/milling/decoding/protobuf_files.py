"""From the text of a ``.proto`` file to what describes its messages: Google's compiler, in a process of its own."""

import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Collection
from itertools import accumulate
from pathlib import Path, PurePosixPath
from signal import SIGABRT, SIGKILL, SIGTERM
from tempfile import TemporaryDirectory
from typing import Final

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from .framed_values import RegisteredSchema

MAIN: Final = "tokenmill-registered-schema.proto"
"""The schema's file name while it is compiled; its imports have the names of its references."""
COMPILE_SECONDS: Final = 60
"""A file takes a tenth of a second, the worst of all that are short enough ten; if it takes this long, something is
wrong with the machine."""
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
"""Clients in Python and Go register a compiled file in base64. Confluent's registry returns the file's text, others
return the base64; no text of a file looks like that."""
_BRACES: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|[{}]""", re.DOTALL)
"""Braces, and what may hold others that do not count: comments and strings."""
_DEEPEST: Final = 100
"""Messages and options in each other. The compiler takes 32 messages, and a gigabyte for each 2,000 that it refuses."""
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
"""Bytes of a file's name, and of its path, that every file system takes."""
_ENDED: Final = (-SIGKILL, -SIGTERM, -SIGABRT)
"""How the compiler ends where there is no memory for it, or somebody ends it. Other signals are its own doing."""
_SHOWN_CHARACTERS: Final = 500
_INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"
"""Where Google's own ``.proto`` files are (google/protobuf/timestamp.proto and the like)."""


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
    texts = {name: one.text for name, one in schema.needed().items()}
    _require_names(texts)
    texts[MAIN] = schema.text
    with TemporaryDirectory(prefix="tokenmill-protobuf-") as folder:
        already = descriptor_pb2.FileDescriptorSet()
        sources, given, output = (Path(folder, name) for name in ("sources", "given", "compiled"))
        for name, text in texts.items():
            if _SERIALIZED.fullmatch(text):
                already.file.append(_serialized(name, text))
            else:
                _write(sources / name, text)
        given.write_bytes(already.SerializeToString())
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc"]
        command += [f"--proto_path={sources}", f"--proto_path={_INCLUDED}"]
        command += [f"--descriptor_set_in={given}", "--include_imports", f"--descriptor_set_out={output}", MAIN]
        done = subprocess.run(command, check=False, capture_output=True, timeout=COMPILE_SECONDS)
        said = done.stderr.decode(errors="replace")
        if done.returncode in _ENDED or said.startswith("Traceback"):
            raise ChildProcessError(f"the compiler of .proto files ended with {done.returncode}: {said[-200:]}")
        if done.returncode or not output.exists():
            raise ValueError(f"it is no Protobuf schema ({_complaint(said, f'{sources}/')})")
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


def _write(path: Path, text: str) -> None:
    depths = accumulate(1 if brace == "{" else -1 for brace in _BRACES.findall(text) if brace in ("{", "}"))
    if max(depths, default=0) > _DEEPEST:
        raise ValueError(f"it is nested over {_DEEPEST} deep")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _complaint(said: str, folder: str) -> str:
    """Return the compiler's message about the files, without anything that changes from run to run."""
    lines = [line.replace(folder, "") for line in said.splitlines() if ".proto:" in line and "parser.cc" not in line]
    return "; ".join(lines)[:_SHOWN_CHARACTERS] or "the compiler failed"
