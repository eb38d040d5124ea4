"""The engine ``tokenizers``: Hugging Face's library loads any ``tokenizer.json`` and is the reference for all ids.

It also says which parts of a file's normalizer make texts longer, and what its post-processor puts around each text.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, chain
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, __version__

from tokenmill.errors import RecordError, SettingsError

from ..native_calls import NativeCode, shown_error
from .protocol import PROBE, TEXT, TOKENIZER_FAILED, SpecialTokens, TokenBatch
from .tokenizer_file import TokenizerFile
from .vocabulary import parts_of

_CALL_CHARACTERS: Final = 1 << 18
"""Characters given to the library in one call, one text at least: a call takes up to 300 bytes for each of them."""
_LONG_TEXT: Final = Lock()
"""Held while a text longer than that is encoded: a worker's partitions encode at once, and their needs would add up."""

_UNKNOWN: Final = "\ue000\U0010fffd"
"""Two private-use characters, which no published vocabulary has."""
_LIBRARY: Final = NativeCode("tokenizers")


class HuggingFace:
    """A ``tokenizer.json``, less all that is not a function of the text.

    Switched off: padding, truncation, special tokens around the text and, unless they are asked for, inside it, BPE
    dropout. Uses as many
    threads as the environment allows (``RAYON_NUM_THREADS``, ``TOKENIZERS_PARALLELISM``).
    """

    kind: Final = "tokenizers"
    added_tokens: Sequence[str]
    """The names of all added tokens, special ones included, in the order of their ids."""
    found_tokens: Sequence[str]
    """The names of added tokens that are found in texts: all, or those that are not special."""

    def __init__(self, content: bytes, special: SpecialTokens = TEXT) -> None:
        """Load the ``tokenizer.json`` with these bytes; ``special`` says what special tokens in a text are.

        Raises SettingsError where they are no tokenizer, or one that fails on text outside its vocabulary.
        """
        self._tokenizer = _load(content)
        self._tokenizer.encode_special_tokens = special == TEXT
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not self.vocabulary_size:
            raise SettingsError("the tokenizer has no token at all: name another one (tokenizer)")
        try:
            with _LIBRARY:
                unknown = self._tokenizer.encode(_UNKNOWN, add_special_tokens=False).ids
        except MemoryError:
            raise
        except Exception as error:
            raise SettingsError(
                f"the tokenizer fails on text outside its vocabulary ({error}): "
                "add an unknown token to it (unk_token), or name another one (tokenizer)"
            ) from error
        self._spelled: dict[int, tuple[int, ...]] = {}
        if special == TEXT:
            self._spelled = _spelled(self._tokenizer, _unknown_ids(self._tokenizer) | set(unknown))
        self._is_special = np.zeros(self.vocabulary_size + 1, np.bool_)  # the last: any id that is too large
        self._is_special[list(self._spelled)] = True
        tokens = self._tokenizer.get_added_tokens_decoder().values()
        self.found_tokens = [token.content for token in tokens if special != TEXT or not token.special]
        self.added_tokens = [token.content for _, token in sorted(self._tokenizer.get_added_tokens_decoder().items())]

    @property
    def normalizes(self) -> bool:
        """Whether texts are normalized."""
        return self._tokenizer.normalizer is not None

    @property
    def may_find_special(self) -> bool:
        """Whether the model itself makes special tokens of their names, so that `encode` has to spell them out."""
        names = (self._tokenizer.id_to_token(number) for number in self._spelled)
        with _LIBRARY:
            return any(
                token.id in self._spelled for name in names if name for token in self._tokenizer.model.tokenize(name)
            )

    def is_special(self, ids: npt.NDArray[np.uint32]) -> bool:
        """Whether one of these ids is a special token that `encode` spells out."""
        return bool(self._is_special.take(ids, mode="clip").any())

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `milling.tokenizers.Engine`."""
        ids: list[npt.NDArray[np.uint32]] = []
        lengths: list[int] = []
        failed: dict[int, RecordError] = {}
        for part in _parts(texts):
            with _turn(part):
                part_ids, part_lengths, wrong = self._encode_part(part)
            failed |= {len(lengths) + at: error for at, error in wrong.items()}
            ids.append(part_ids)
            lengths += part_lengths
        flat = np.concatenate(ids) if ids else np.empty(0, np.uint32)
        return TokenBatch(flat, np.fromiter(accumulate(lengths, initial=0), np.int64, len(lengths) + 1), failed)

    def _encode_part(self, texts: list[str]) -> tuple[npt.NDArray[np.uint32], list[int], dict[int, RecordError]]:
        """Return the ids of all texts, how many each has, and why some have none; nothing else of it is kept."""
        lists, wrong = self._lists(texts)
        ids = _flat(lists)
        if self._is_special[ids].any():
            lists = [[n for number in numbers for n in self._spelled.get(number, (number,))] for numbers in lists]
            ids = _flat(lists)
        return ids, list(map(len, lists)), wrong

    def _lists(self, texts: list[str]) -> tuple[list[list[int]], dict[int, RecordError]]:
        """Return the library's ids of each text, and why it fails on some: those that it fails on by themselves."""
        try:
            with _LIBRARY:
                encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:  # noqa: BLE001 - a panic, or an error of whatever part it has
            if len(texts) == 1:
                return [[]], {0: _failure(error)}
            answers = [self._lists([text]) for text in texts]
            failed = {at: wrong[0] for at, (_, wrong) in enumerate(answers) if wrong}
            return [lists[0] for lists, _ in answers], failed
        return [encoding.ids for encoding in encodings], {}

    def decode(self, ids: Sequence[int]) -> str:
        """Return text for people, special tokens included."""
        with _LIBRARY:
            text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, added or not; None where there is none of this name."""
        number: int | None = self._tokenizer.token_to_id(token)
        return number


def _load(content: bytes) -> Tokenizer:
    try:
        with _LIBRARY:
            tokenizer = Tokenizer.from_str(content.decode())
    except MemoryError:
        raise
    except Exception as error:
        raise SettingsError(
            f"the tokenizer cannot be loaded by tokenizers {__version__}, which is installed here ({error}): name a "
            "tokenizer.json (tokenizer); if a later version of tokenizers wrote this one, install that version, or "
            "have the file written by this one"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


def _unknown_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the unknown id that the model names: a trial may not show it, as normalizers may remove characters."""
    model = json.loads(tokenizer.to_str())["model"]
    number: int | None = model["unk_id"] if "unk_id" in model else tokenizer.token_to_id(model.get("unk_token") or "")
    return set() if number is None else {int(number)}


def _failure(error: Exception) -> RecordError:
    """Return the error for a text on which the library fails; it fails on this text on every machine."""
    refusal = RecordError(TOKENIZER_FAILED, shown_error(error))
    refusal.__cause__ = error.__cause__ or error
    return refusal


def _flat(lists: Sequence[Sequence[int]]) -> npt.NDArray[np.uint32]:
    return np.fromiter(chain.from_iterable(lists), np.uint32, sum(map(len, lists)))


def _spelled(tokenizer: Tokenizer, unknown: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return, for each special token, the ids of its name as text: of the name cut in two where needed.

    ``encode_special_tokens`` keeps special tokens from being looked for in a text, but a model that has their names in
    its vocabulary like other words (Unigram, word models) still finds them. Ids for unknown text are left out.
    """
    special = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    spelled = {}
    for number, name in special.items():
        for cut in range(1, len(name)):
            with _LIBRARY:
                ids = tuple(token.id for part in (name[:cut], name[cut:]) for token in tokenizer.model.tokenize(part))
            if not (special.keys() - unknown) & set(ids):
                spelled[number] = ids
                break
    return {number: ids for number, ids in spelled.items() if number not in unknown}


def _turn(texts: list[str]) -> AbstractContextManager[object]:
    """Return the context in which a call encodes: long texts take turns, texts of an ordinary call do not wait."""
    return _LONG_TEXT if len(texts[0]) > _CALL_CHARACTERS else nullcontext()


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Divide the texts, in order, into runs of about `_CALL_CHARACTERS`."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _CALL_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


HARMLESS: Final = frozenset({"ByteLevel", "Lowercase", "Prepend", "Strip", "StripAccents"})
"""Parts that make a text longer by half at most, or by what they put before it, or spell each of its bytes."""
_NO_MODEL: Final = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}


def lengthening(content: bytes) -> Callable[[str], str] | None:
    """Return a function that applies the lengthening parts of a file's normalizer; None where it has none.

    Left out are the parts in `HARMLESS`, and each ``Replace`` of a string by one of no more characters: with ``▁`` for
    every space a text has more bytes, and not one token more. ``content`` is that of a tokenizer for which an engine
    was opened. What the library raises, the function raises; a panic as `tokenmill.errors.PanicError`.
    """
    parts = [part for part in parts_of(json.loads(content), "normalizer") if not _is_harmless(part)]
    if not parts:
        return None
    file = {"version": "1.0", "model": _NO_MODEL, "normalizer": {"type": "Sequence", "normalizers": parts}}
    with _LIBRARY:
        normalizer = Tokenizer.from_str(json.dumps(file)).normalizer

    def normalize(text: str) -> str:
        with _LIBRARY:
            normalized: str = normalizer.normalize_str(text)
        return normalized

    return normalize


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
    with NativeCode("tokenizers"):
        library = Tokenizer.from_str(tokenizer.content.decode())
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()
        pairs = [[library.encode(text, add_special_tokens=added).ids for added in (False, True)] for text in PROBE]
    found = set.intersection(*(set(_around(plain, whole)) for plain, whole in pairs))
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
    """Yield what may have been put around ``plain`` to make ``whole``."""
    size = len(plain)
    for at in range(len(whole) - size + 1):
        if whole[at : at + size] == plain:
            yield Template(tuple(whole[:at]), tuple(whole[at + size :]))
