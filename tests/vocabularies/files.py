"""Where the packages of requirements/test-data.txt are, and how a ``tokenizer.json`` is put together and kept."""

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = Path(sys.prefix) / "test-data"
"""Where the Makefile installs them: in the virtual environment, but apart from its packages."""


def data_file(name: str) -> Path:
    """Return the path of a file in `FOLDER`.

    Raises:
        FileNotFoundError: it is not there; the message says how it gets there.

    """
    path = FOLDER / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: `make test` fetches the vocabularies that tests read")
    return path


def tokenizer_json(**parts: Any) -> bytes:
    """Return a ``tokenizer.json`` with these parts, ``model`` at least; what is not given is null."""
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    content = {"version": "1.0", "added_tokens": []} | dict.fromkeys(names) | parts
    return json.dumps(content, ensure_ascii=False).encode()


def added_token(number: int, name: str, *, special: bool = True) -> dict[str, Any]:
    """Return an entry of ``added_tokens``, found in a text as it is written there."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, "special": special} | flags


def library(content: bytes, *, special: bool = False) -> Tokenizer:
    """Return the tokenizer of a file as anyone would use it, with special tokens in a text only where asked for."""
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.encode_special_tokens = not special
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def made_once(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Make a vocabulary once in a virtual environment, and again after a change of what it is made by (`_makers`)."""

    @cache
    @wraps(make)
    def made() -> bytes:
        name = f"{make.__name__}-"
        path = FOLDER / "made" / f"{name}{_makers()}.json"
        with suppress(FileNotFoundError):
            return path.read_bytes()
        content = make()
        with suppress(OSError):  # where nobody may write, each process makes it
            _write(path, content, olds=f"{name}*.json")
        return content

    return made


def _write(path: Path, content: bytes, *, olds: str) -> None:
    """Write a file, whole or not at all, as other processes may at the same time; remove ``olds`` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.json")  # one of the olds if this process is killed
    part.write_bytes(content)
    part.replace(path)
    for old in path.parent.glob(olds):
        if old != path:
            old.unlink(missing_ok=True)


@cache
def _makers() -> str:
    """Return a hash of the code here, the packages' versions, and the Python, whose documentation is learnt from."""
    found = hashlib.sha256(sys.version.encode())
    for library in ("tokenizers", "sentencepiece"):
        found.update(importlib.metadata.version(library).encode())
    for path in sorted((*Path(__file__).parent.glob("*.py"), ROOT / "requirements/test-data.txt")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
