"""The engine ``tokenizers``: Hugging Face's library loads any ``tokenizer.json`` and is the reference for all ids.

`Library` is what all other code has of it, whatever its version: version 1 encodes and decodes, and says nothing of a
tokenizer, so `vocabulary` reads the rest in its file. `lengthening` says which parts of a file's normalizer make texts
longer, `template_of` what its post-processor puts around each text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, cached_property
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, __version__

from tokenmill.errors import RecordError, SettingsError

from ..document_columns import divide
from ..foreign_code import NativeCode, shown_error
from . import older_library
from .protocol import PROBE, TEXT, TOKENIZER_FAILED, SpecialTokens, TokenBatch, batch_of, joined
from .vocabulary import TokenizerFile, added_ids, model_ids, parts_of, renumbered

_LIBRARY: Final = NativeCode("tokenizers")
_PRINTABLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that stand for themselves in byte-level vocabularies, as Latin-1 characters; the others follow from U+0100."""


class Library:
    """A loaded ``tokenizer.json``. Its methods raise what the library raises, a panic as `PanicError`."""

    def __init__(self, content: str, special: SpecialTokens = TEXT) -> None:
        self._special_is_text = special == TEXT
        with _LIBRARY:
            if older_library.INSTALLED:
                self._tokenizer: Any = older_library.load(content, special_is_text=self._special_is_text)
                return
            with NamedTemporaryFile("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                self._tokenizer = Tokenizer.from_file(file.name)

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
        wrong = renumbered(file)
        for token, number in wrong:  # version 1 gives others
            token["id"] = number
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


_CALL_CHARACTERS: Final = 1 << 18
"""Characters given to the library in one call, one text at least: a call takes up to 300 bytes for each of them."""
_LONG_TEXT: Final = Lock()
"""Held while a text longer than that is encoded: a worker's partitions encode at once, and their needs would add up."""

_UNKNOWN: Final = "\ue000\U0010fffd"
"""Two private-use characters, which no published vocabulary has."""


class HuggingFace:
    """A ``tokenizer.json``, less all that is not a function of the text.

    Switched off: padding, truncation, special tokens around the text and, unless they are asked for, inside it, BPE
    dropout. Uses as many threads as the environment allows (``RAYON_NUM_THREADS``, ``TOKENIZERS_PARALLELISM``).
    """

    kind: Final = "tokenizers"
    added_tokens: Sequence[str]
    """The names of all added tokens, special ones included, in the order of their ids."""
    found_tokens: Sequence[str]
    """The names of added tokens that are found in texts: all, or those that are not special."""
    normalizes: bool

    def __init__(self, content: bytes, special: SpecialTokens = TEXT) -> None:
        """Load a ``tokenizer.json``. Raises SettingsError where it is none, or fails on text outside its vocabulary."""
        self._content = content
        self._library, file = load(content, special)
        self.decode = self._library.decode
        known, self._added = model_ids(file), added_ids(file)
        self.vocabulary_size = 1 + max((*known.values(), *self._added.values()), default=-1)
        if not self.vocabulary_size:
            raise SettingsError("the tokenizer has no token at all: name another one (tokenizer)")
        try:
            unknown = set(self._library.encode([_UNKNOWN])[0].tolist())
        except MemoryError:
            raise
        except Exception as error:
            raise SettingsError(
                f"the tokenizer fails on text outside its vocabulary ({error}): add an unknown token to it "
                "(unk_token), install another version of tokenizers, or name another one (tokenizer)"
            ) from error
        # the model names it as well: a trial may not show it, as normalizers may remove characters
        unknown |= {file["model"].get("unk_id"), known.get(file["model"].get("unk_token") or "")}
        if file["model"].get("byte_fallback"):  # bytes of any text, which some files list as special
            unknown |= {known.get(f"<0x{byte:02X}>") for byte in range(0x100)}
        self._special = {name: number for name, number in added_ids(file, special=True).items() if special == TEXT}
        self._is_special = np.zeros(self.vocabulary_size + 1, np.bool_)  # the last: any id that is too large
        self._is_special[[number for number in self._special.values() if number not in unknown]] = True
        self._spelling = cache(self._spelled_out)
        self.normalizes = bool(file.get("normalizer"))
        self.found_tokens = [name for name in self._added if name not in self._special]
        self.added_tokens = sorted(self._added, key=self._added.__getitem__)

    @property
    def may_find_special(self) -> bool:
        """Whether the model itself makes special tokens of their names, so that `encode` has to spell them out."""
        texts = [text for name in self._special for text in (name, f"a{name} {name}")]
        return any(map(self.is_special, self._library.encode(texts)))

    def is_special(self, ids: npt.NDArray[np.uint32]) -> bool:
        """Whether one of these ids is a special token that `encode` spells out."""
        return bool(self._is_special.take(ids, mode="clip").any())

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `milling.tokenizers.Engine`."""
        lengths, batches = np.fromiter(map(len, texts), np.int64, len(texts)), []
        for low, high in divide(lengths, items=len(texts), room=_CALL_CHARACTERS):
            with _LONG_TEXT if lengths[low] > _CALL_CHARACTERS else nullcontext():
                batches.append(self._encode_part(list(texts[low:high])))
        return joined(batches)

    def _encode_part(self, texts: list[str]) -> TokenBatch:
        """Return the ids of all texts, and why some have none; nothing else that the library made is kept."""
        ids, failed = self._ids(texts)
        batch = batch_of(ids, failed)
        return batch_of(list(map(self._spelled, ids)), failed) if self.is_special(batch.ids) else batch

    def _ids(self, texts: list[str]) -> tuple[list[npt.NDArray[np.uint32]], dict[int, RecordError]]:
        """Return the library's ids of each text, and why it fails on some: those that it fails on by themselves."""
        try:
            return self._library.encode(texts), {}
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:  # noqa: BLE001 - a panic, or an error of whatever part it has
            if len(texts) == 1:
                refusal = RecordError(TOKENIZER_FAILED, shown_error(error))  # on every machine
                refusal.__cause__ = error.__cause__ or error
                return [np.empty(0, np.uint32)], {0: refusal}
            answers = [self._ids([text]) for text in texts]
            failed = {at: wrong[0] for at, (_, wrong) in enumerate(answers) if wrong}
            return [ids[0] for ids, _ in answers], failed

    def _spelled(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        return np.array([one for number in ids.tolist() for one in self._spelling(number)], np.uint32)

    def _spelled_out(self, number: int) -> tuple[int, ...]:
        """Return, for a special token, the ids of its name as text: of the name cut in two; else the id.

        The library does not look for special tokens in a text, but a model that has their names in its vocabulary like
        other words (Unigram, word models) still finds them. The id for unknown text is left as it is.
        """
        names = [name for name, its in self._special.items() if its == number and self._is_special[number]]
        for name in names:
            for cut in range(1, len(name)):
                ids = np.concatenate(self._model.encode([name[:cut], name[cut:]]))
                if not self.is_special(ids):
                    return tuple(ids.tolist())
        return (number,)

    @cached_property
    def _model(self) -> Library:
        return Library(json.dumps({"version": "1.0", "model": json.loads(self._content)["model"]}))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, added or not; None where there is none of this name."""
        number = self._added.get(token)  # a dictionary of all would take tens of megabytes, for rare questions
        return model_ids(json.loads(self._content)).get(token) if number is None else number


HARMLESS: Final = frozenset({"ByteLevel", "Lowercase", "Prepend", "Strip", "StripAccents"})
"""Parts that make a text longer by half at most, or by what they put before it, or spell each of its bytes."""


def lengthening(content: bytes) -> Callable[[str], str] | None:
    """Return a function that applies the lengthening parts of a file's normalizer; None where it has none.

    Left out are the parts in `HARMLESS`, and each ``Replace`` of a string by one of no more characters: with ``▁`` for
    every space a text has more bytes, and not one token more. ``content`` is that of a tokenizer for which an engine
    was opened. What the library raises, the function raises; a panic as `tokenmill.errors.PanicError`.
    """
    parts = [part for part in parts_of(json.loads(content), "normalizer") if not _is_harmless(part)]
    return normalizer_of(parts) if parts else None


def _is_harmless(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "Replace":
        found = part["pattern"].get("String")
        return found is not None and len(part["content"]) <= len(found)
    return part.get("type") in HARMLESS


class Template(NamedTuple):
    """Ids around the ids of a text; a side may be empty."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def template_of(tokenizer: TokenizerFile) -> Template:
    """Return what ``tokenizers`` adds to every text with ``add_special_tokens=True``, found on the probe texts.

    Raises SettingsError where it adds nothing, or it does something else with a text than put the same ids around it.
    """
    if tokenizer.content is None:
        raise SettingsError("raw bytes have no template: name the ids (begin_of_document, end_of_document)")
    library, _ = load(tokenizer.content)
    pairs = zip(library.encode(PROBE), library.encode(PROBE, around=True), strict=True)
    found = set.intersection(*(set(_around(plain.tolist(), whole.tolist())) for plain, whole in pairs))
    if not found:
        raise SettingsError(
            "the tokenizer's post-processor does more than put the same tokens around each text, which no stream can "
            "follow: name the tokens instead (begin_of_document, end_of_document)"
        )
    template = min(found)
    if template == Template():
        raise SettingsError(
            "the tokenizer has no template: its post-processor adds no token to a text; name the tokens instead "
            "(begin_of_document, end_of_document)"
        )
    return template


def _around(plain: list[int], whole: list[int]) -> Iterator[Template]:
    size = len(plain)
    for at in range(len(whole) - size + 1):
        if whole[at : at + size] == plain:
            yield Template(tuple(whole[:at]), tuple(whole[at + size :]))
