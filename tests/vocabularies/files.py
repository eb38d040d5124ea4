"""Where the packages of requirements.txt are, and how a ``tokenizer.json`` is put together and kept."""

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final

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


def made_once(make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Make a vocabulary once in a virtual environment, and again after a change of what it is made by (`_makers`)."""

    @cache
    @wraps(make)
    def made() -> bytes:
        folder, name = FOLDER / "made", f"{make.__name__}-"
        path = folder / f"{name}{_makers()}.json"
        if path.is_file():
            return path.read_bytes()
        content = make()
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{name}*.json"):
            old.unlink(missing_ok=True)
        part = path.with_suffix(f".{os.getpid()}")  # tests run in several processes: a file is there whole, or not
        part.write_bytes(content)
        part.replace(path)
        return content

    return made


@cache
def _makers() -> str:
    """Return a hash of the code here, the packages' versions, and the Python, whose documentation is learnt from."""
    found = hashlib.sha256(sys.version.encode())
    for library in ("tokenizers", "sentencepiece"):
        found.update(importlib.metadata.version(library).encode())
    for path in sorted((*Path(__file__).parent.glob("*.py"), Path(__file__).parent / "requirements.txt")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
