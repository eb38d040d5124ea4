"""The engine ``gigatoken``: byte-level and SentencePiece BPE at some hundred megabytes a second and core.

https://github.com/marcelroed/gigatoken. Its ids are those of `tokenizers`, and `milling.tokenizers.checked`
checks that.
"""

import json
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import gigatoken
import numpy as np

from tokenmill.errors import PanicError, SettingsError

from ..foreign_code import NativeCode
from .hugging_face import normalizer_of
from .protocol import TEXT, SpecialTokens, TokenBatch, batch_of
from .vocabulary import parts_of

CACHE_BYTES: Final = 256 * 1024 * 1024
"""How much the process may grow before the library's cache of words, which has no bound of its own, is thrown away.

Prose needs some 20 MB of it; only text without repeated words (keys, hashes) gets here, after about 400 MB.
"""
SINGLY_CHARACTERS: Final = 1 << 14
"""Texts of so many characters together are encoded one by one: what the library returns for a batch is made with
awkward, which takes 0.4 seconds to load. A worker that starts has only short texts to compare, and perhaps to mill."""
CACHE_CHECK_BYTES: Final = 32 * 1024 * 1024
"""Characters between two looks at the process's size: the cache grows by some times the text at most."""

_UNICODE_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers that leave ASCII alone."""
_LIBRARY: Final = NativeCode("gigatoken")


class Gigatoken:
    """The ids of a ``tokenizer.json``; special tokens in the text are text, or found. Bounded in memory.

    Unicode normal forms, and normalizers that the library lacks, are those of `tokenizers`, applied first. One thread
    where ``RAYON_NUM_THREADS`` is 1, else as many as the environment allows.
    """

    def __init__(self, content: bytes, special: SpecialTokens = TEXT) -> None:
        """Load a ``tokenizer.json``. Raises SettingsError where it is of a kind that the library cannot do."""
        self._file = json.loads(content)
        self._normalize: Callable[[str], str] | None = None
        self._ascii_is_normal = False
        # without all that is not a function of the text: the library would apply some of it
        added = self._file.get("added_tokens") or []
        self._file["added_tokens"] = [token for token in added if special != TEXT or not token.get("special")]
        self._file |= {"post_processor": None, "truncation": None, "padding": None}
        if "dropout" in self._file.get("model", {}):
            self._file["model"]["dropout"] = None
        _refuse_ignored(self._file)
        if self._is_unicode_form():
            self._normalize_first()  # the library's tables are of another Unicode version than the reference's
        try:
            self._tokenizer = self._load()
        except SettingsError:
            if not self._file.get("normalizer") or self._file["added_tokens"]:
                raise  # added tokens may be looked for before the text is normalized
            self._normalize_first()
            self._tokenizer = self._load()
        self._parallel = None if os.environ.get("RAYON_NUM_THREADS") != "1" else False
        self._one_at_a_time = Lock()
        self._unchecked = 0
        self._size = _process_bytes()

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``. After a panic, raised as `PanicError`, the next call uses a new library."""
        data = list(texts)
        if self._normalize is not None:
            data = [text if self._ascii_is_normal and text.isascii() else self._normalize(text) for text in data]
        if not data:
            return TokenBatch(np.empty(0, np.uint32), np.zeros(1, np.int64))
        characters = sum(map(len, data))
        # The library refuses a second thread, now and then ("Already borrowed"), and its cache is thrown away here.
        # Most of a worker's time is not the engine's, so its threads seldom meet.
        with self._one_at_a_time:
            self._bound_cache(characters)
            try:
                with _LIBRARY:
                    if characters <= SINGLY_CHARACTERS:
                        return batch_of([self._tokenizer.encode(text) for text in data])
                    views = self._tokenizer.encode_batch(data, parallel=self._parallel).layout
                    return TokenBatch(np.asarray(views.content.data), np.asarray(views.offsets.data))
            except PanicError:
                self._tokenizer = self._load()  # the state of the other one after a panic is unknown
                raise

    def _is_unicode_form(self) -> bool:
        parts = parts_of(self._file, "normalizer")
        return bool(parts) and all(part.get("type") in _UNICODE_FORMS for part in parts)

    def _normalize_first(self) -> None:
        self._ascii_is_normal = self._is_unicode_form()
        self._normalize = normalizer_of(parts_of(self._file, "normalizer"))
        self._file["normalizer"] = None

    def _load(self) -> Any:
        try:
            with _LIBRARY:
                return gigatoken.Tokenizer.from_json(json.dumps(self._file))
        except MemoryError:
            raise
        except Exception as error:  # the library's own types vary with the cause
            raise SettingsError(f"gigatoken cannot do this tokenizer: {str(error).partition(chr(10))[0]}") from error

    def _bound_cache(self, characters: int) -> None:
        self._unchecked += characters
        if self._unchecked < CACHE_CHECK_BYTES:
            return
        self._unchecked = 0
        if _process_bytes() > self._size + CACHE_BYTES:
            del self._tokenizer  # before the next one is there
            self._tokenizer = self._load()
            self._size = _process_bytes()


def _refuse_ignored(file: dict[str, Any]) -> None:
    model, parts = file.get("model", {}), parts_of(file, "pre_tokenizer")
    types = [part.get("type") for part in parts]
    # the library would ignore these silently, and so encode wrongly
    ignored = [name for name in ("end_of_word_suffix", "continuing_subword_prefix") if model.get(name)]
    if any(token.get("single_word") for token in file["added_tokens"]):
        ignored.append("single_word")
    if not parts and not model.get("byte_fallback"):
        ignored.append("a missing pre_tokenizer")
    if "Split" not in types and any(part.get("use_regex") is False for part in parts):
        ignored.append("use_regex = false")
    if ignored:
        raise SettingsError(f"gigatoken cannot do this tokenizer: it would ignore {', '.join(ignored)}")


def _process_bytes() -> int:
    """Return the size of this process in memory; 0 where the system does not say, so that nothing seems to grow."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - called in the hot path
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
