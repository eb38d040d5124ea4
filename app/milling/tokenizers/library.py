"""The library ``tokenizers`` as all other code has it, whatever its version.

Version 1 encodes and decodes, and says nothing of a tokenizer: `vocabulary` reads the rest in its file.
"""

import json
from collections.abc import Callable, Sequence
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, __version__

from tokenmill.errors import SettingsError

from ..native_calls import NativeCode
from . import older_library
from .protocol import TEXT, SpecialTokens
from .vocabulary import added_ids

_LIBRARY: Final = NativeCode("tokenizers")
_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in byte-level vocabularies, as Latin-1 characters; the others follow from U+0100."""


class Library:
    """A loaded ``tokenizer.json``. Its methods raise what the library raises, a panic as `PanicError`."""

    def __init__(self, content: str, special: SpecialTokens = TEXT) -> None:
        self._special_is_text = special == TEXT
        with _LIBRARY:
            self._tokenizer = self._load(content)

    def _load(self, content: str) -> Any:
        if older_library.INSTALLED:
            return older_library.load(content, special_is_text=self._special_is_text)
        with NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            return Tokenizer.from_file(file.name)

    def encode(self, texts: Sequence[str], *, around: bool = False) -> list[npt.NDArray[np.uint32]]:
        """Return the ids of each text; ``around``: with those that the post-processor adds."""
        with _LIBRARY:
            if older_library.INSTALLED:
                return older_library.encode(self._tokenizer, texts, around=around)
            found = self._tokenizer.encode_batch(
                texts,
                add_special_tokens=around,
                encode_special_tokens=self._special_is_text,
                padding=None,
                truncation=None,
            )
            return [one.ids_array for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people, special tokens included."""
        with _LIBRARY:
            text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text


def load(content: bytes, special: SpecialTokens = TEXT) -> tuple[Library, dict[str, Any]]:
    """Return a ``tokenizer.json`` as the library has it, and as a value. Raises SettingsError where it cannot be."""
    try:
        text = content.decode()
        file = json.loads(text)
        ids = added_ids(file)
        wrong = [token for token in file.get("added_tokens") or () if token["id"] != ids[token["content"]]]
        for token in wrong:  # version 1 gives others
            token["id"] = ids[token["content"]]
        if wrong or file["model"].get("dropout"):
            file["model"] |= {"dropout": None} if "dropout" in file["model"] else {}
            text = json.dumps(file)
        return Library(text, special), file
    except MemoryError:
        raise
    except Exception as error:
        raise SettingsError(
            f"the tokenizer cannot be loaded by tokenizers {__version__}, which is installed here ({error}): name a "
            "tokenizer.json (tokenizer); if a later version of tokenizers wrote this one, install that version, or "
            "have the file written by this one"
        ) from error


def normalizer_of(parts: Sequence[Any]) -> Callable[[str], str]:
    """Return a function that applies these parts of a normalizer, and raises as `Library` does."""
    sequence = {"type": "Sequence", "normalizers": parts}
    if older_library.INSTALLED:
        with _LIBRARY:
            return older_library.normalizer_of(sequence, _LIBRARY)
    # a model of bytes without merges: ids are the bytes of the normalized text
    others = iter(range(0x100, 0x200))
    vocabulary = {chr(byte if byte in _PRINTABLE else next(others)): byte for byte in range(0x100)}
    words = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    library = Library(json.dumps({"version": "1.0", "normalizer": sequence, "pre_tokenizer": words, "model": model}))
    return lambda text: library.encode([text])[0].astype(np.uint8).tobytes().decode()
