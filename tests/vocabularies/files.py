"""Where the packages of requirements.txt are, and how a ``tokenizer.json`` is put together."""

import json
import sys
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
