"""What a stream and people must know of a tokenizer: tokens by name and with a usual meaning, the dtype of ids."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from tokenmill.errors import SettingsError

from .protocol import END_OF_DOCUMENT, Engine
from .tokenizer_file import TokenizerFile

_SEQUENCES: Final = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
"""The keys under which a sequence holds its parts."""


@dataclass(frozen=True, slots=True)
class Description:
    """The parts of a tokenizer, by the names that its file gives them."""

    model: str
    """``BPE``, ``Unigram``, ``WordPiece``, ``WordLevel``; ``bytes`` for raw bytes."""
    normalizer: str
    pre_tokenizer: str
    special: Mapping[str, int]
    """Special tokens and their ids; in a text, their names are text."""
    added: Mapping[str, int]
    """Added tokens that are not special: they are found in texts."""

    @classmethod
    def of(cls, tokenizer: TokenizerFile) -> Self:
        """Describe a tokenizer that an engine could be opened for."""
        if tokenizer.content is None:
            return cls("bytes", "none", "none", {}, {})
        file = json.loads(tokenizer.content)
        model = file["model"]
        fallback = " with byte fallback" if model.get("byte_fallback") else ""
        return cls(
            model=model.get("type", "BPE") + fallback,
            normalizer=_names(parts_of(file, "normalizer")),
            pre_tokenizer=_names(parts_of(file, "pre_tokenizer")),
            special=added_ids(file, special=True),
            added=added_ids(file, special=False),
        )


def parts_of(file: Mapping[str, Any], name: Literal["normalizer", "pre_tokenizer"]) -> list[dict[str, Any]]:
    """Return the parts, one after the other, of a ``tokenizer.json``'s normalizer or pre-tokenizer."""
    part = file.get(name)
    return list(part.get(_SEQUENCES[name], [part])) if part else []


def model_ids(file: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the ids of a ``tokenizer.json``'s model, by name."""
    ids = file["model"].get("vocab") or {}
    return ids if isinstance(ids, dict) else {piece[0]: number for number, piece in enumerate(ids)}


def added_ids(file: Mapping[str, Any], *, special: bool | None = None) -> dict[str, int]:
    """Return the ids of the added tokens by name, of those that are special or not where ``special`` is given.

    They are those that `tokenizers` gives: a word of the model has the model's, others those from the model's number of
    words on, whatever the file says.
    """
    known, tokens = model_ids(file), file.get("added_tokens") or []
    new = dict.fromkeys(token["content"] for token in tokens if token["content"] not in known)
    given = {name: len(known) + at for at, name in enumerate(new)}
    names = [token["content"] for token in tokens if special in (None, bool(token.get("special")))]
    return {name: given[name] if name in given else known[name] for name in names}


def _names(parts: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(part["type"]) for part in parts) or "none"


USUAL_NAMES: Final = (
    "<|endoftext|>",  # GPT-2 and its descendants, Qwen, OLMo, Whisper
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama 2, Mistral, T5
    "<eos>",  # Gemma
    "<|eos|>",
    "<|end_of_sentence|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek writes it with these characters
    "<EOT>",  # Claude
    "[EOS]",
    "[SEP]",  # BERT
)
"""Names under which tokenizers have the special token that ends a text. (Not ``<|im_end|>`` and the like, which end a
turn.)"""
USUAL_PADDING: Final = (
    "<pad>",  # Gemma, T5, Mistral's later ones
    "[PAD]",  # BERT
    "<|padding|>",  # GPT-NeoX
    "<|finetune_right_pad_id|>",  # Llama 3.1 and later
    "<|pad|>",
    "<｜▁pad▁｜>",  # noqa: RUF001 - DeepSeek
)
"""Names under which tokenizers have the special token that fills up rows."""
USUAL_BEGINS: Final = (
    "<|begin_of_text|>",  # Llama 3
    "<s>",  # Llama 2, Mistral
    "<bos>",  # Gemma
    "<|startoftext|>",
    "<｜begin▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek
    "[CLS]",  # BERT
)
"""Names under which tokenizers have the special token that begins a text."""
Role: TypeAlias = Literal["eos", "pad", "bos", "unk"]
"""What a token is for, as files of tokenizers name it: it ends a text, fills up rows, begins a text, or stands for what
is not in the vocabulary."""
_ROLES: Final[Mapping[Role, tuple[str, tuple[str, ...]]]] = {
    "eos": ("end_of_document", USUAL_NAMES),
    "pad": ("padding", USUAL_PADDING),
    "bos": ("begin_of_document", USUAL_BEGINS),
    "unk": ("unk_token in the tokenizer's files", ("<unk>", "[UNK]", "<|unk|>")),
}
"""What people set to choose another token, and usual names."""


def token_id_of(engine: Engine, name: str, setting: str | int) -> int:
    """Return the id of the token that the setting ``name`` gives, by its name or its id.

    Decimal digits are an id, unless a token has that name. Raises SettingsError where there is no such token.
    """
    number = setting if isinstance(setting, int) else engine.token_id(setting)
    if number is None and isinstance(setting, str) and setting.isascii() and setting.isdecimal():
        number = int(setting)
    if number is None or isinstance(setting, bool) or not 0 <= number < engine.vocabulary_size:
        raise SettingsError(
            f"{name} = {setting!r} is no token of the tokenizer: give the name of one, "
            f"or an id from 0 to {engine.vocabulary_size - 1}"
        )
    return number


class ChosenToken(NamedTuple):
    """A token that no setting names."""

    id: int
    why: str
    """Where it was found, for people."""


def shown_token(engine: Engine, number: int) -> str:
    """Return a token as people are told of it: its name, special or not, and its id."""
    name = engine.decode([number])
    return f"{name} (id {number})" if name.strip() and name.isprintable() else f"id {number}"


def end_of(tokenizer: TokenizerFile, engine: Engine) -> ChosenToken:
    """Return the token that ends a text. Raises SettingsError where there is none, or there are several."""
    found = token_for("eos", tokenizer, engine)
    if found is None:
        raise SettingsError(
            "the tokenizer has no special token that usually ends a text: set end_of_document to the name or id of the "
            'one to use, or to "none"'
        )
    return found


def token_for(role: Role, tokenizer: TokenizerFile, engine: Engine) -> ChosenToken | None:
    """Return the token for a role: the one that the tokenizer's files name, else the special one of a usual name.

    None where there is none. Raises SettingsError where there are several; or where a file beside the tokenizer names
    what is no token, and no other file says which it is (where one does, ``why`` speaks of both).
    """
    if tokenizer.content is None:
        return ChosenToken(END_OF_DOCUMENT, "the zero byte") if role in {"eos", "pad"} else None
    setting, usual = _ROLES[role]
    said = list(_named(tokenizer, engine, role))
    named = {one.where: one.ids for one in said if one.ids}
    wrong = "; ".join(one.wrong for one in said if one.wrong)
    special = Description.of(tokenizer).special
    if named:
        agreed = set.intersection(*named.values())
        where, among = f"named by {', '.join(named)}", agreed or set.union(*named.values())
        certain = bool(agreed) and any(one.ids and not one.wrong for one in said)
    else:
        where, among = "the special token with a usual name", {special[name] for name in usual if name in special}
        certain = not wrong
    if len(among) == 1 and certain:
        return ChosenToken(among.pop(), f"{where} (passed over: {wrong})" if wrong else where)
    if not among and not wrong:
        return None
    choice = ", ".join(shown_token(engine, number) for number in sorted(among))
    if wrong:
        there = f" It has {choice}." if choice else ""
        raise SettingsError(f"{wrong}.{there} Correct the file, or set {setting} to the name or id of a token")
    raise SettingsError(f"the tokenizer has several tokens for this: {choice}. Set {setting} to the name or id of one")


class _Said(NamedTuple):
    """What a file says about a role."""

    where: str
    ids: set[int]
    wrong: str = ""
    """What of it is no token, for people."""


def _named(tokenizer: TokenizerFile, engine: Engine, role: Role) -> Iterator[_Said]:
    """Yield what each file says; files name other tokens as well, which count as nothing said."""
    file = json.loads(tokenizer.content or b"{}")
    if role == "pad":
        yield _said_of_padding(file.get("padding") or {}, engine)
    elif role == "unk":
        model = file.get("model") or {}
        name = model.get("unk_token")
        number = model.get("unk_id") if name is None else engine.token_id(name)
        yield _Said("tokenizer.json (model)", _ids(number, engine))
    elif beside := _beside(file.get("post_processor"), engine, after=role == "eos"):
        yield _Said("tokenizer.json (post_processor)", beside)
    for name, values in tokenizer.beside.items():
        yield _said_beside(name, values, engine, role)


def _said_of_padding(padding: Mapping[str, Any], engine: Engine) -> _Said:
    name, number = padding.get("pad_token"), padding.get("pad_id")
    ids = _ids(number, engine)
    if not ids or not isinstance(name, str) or engine.token_id(name) in ids:
        return _Said("tokenizer.json (padding)", ids)
    return _Said("tokenizer.json", set(), f"padding in tokenizer.json is {name}, id {number}, which is no such token")


def _said_beside(name: str, values: Any, engine: Engine, role: Role) -> _Said:
    if not isinstance(values, dict):
        return _Said(name, set(), f"{name} is no JSON object")
    if name == "generation_config.json":
        key, wanted = f"{role}_token_id", f"no id from 0 to {engine.vocabulary_size - 1}"
        value = values.get(key)
        listed = value if isinstance(value, list) else [value]
        ids = _ids(value, engine)
        is_right = all(_ids([one], engine) for one in listed)
    else:
        key, wanted = f"{role}_token", "the name of no token"
        value = values.get(key)
        token = value.get("content") if isinstance(value, dict) else value
        ids = _ids(engine.token_id(token) if isinstance(token, str) else None, engine)
        is_right = bool(ids)
    if value is None or is_right:
        return _Said(name, ids)
    return _Said(name, ids, f"{key} of {name} is {json.dumps(value, ensure_ascii=False)}, {wanted}")


def _beside(part: Any, engine: Engine, *, after: bool) -> set[int]:
    """Return the one token that a post-processor puts after a text, or before it; none where it puts not just one."""
    if not isinstance(part, dict):
        return set()
    if part.get("type") == "Sequence":
        return set().union(*(_beside(one, engine, after=after) for one in part.get("processors") or ()))
    if part.get("type") in {"BertProcessing", "RobertaProcessing"}:
        return _ids((part.get("sep" if after else "cls") or [None])[-1], engine)
    single = part.get("single") or []
    at = next((number for number, one in enumerate(single) if "Sequence" in one), len(single))
    side = single[at + 1 :] if after else single[:at]
    names = [one["SpecialToken"]["id"] for one in side if "SpecialToken" in one]
    ids = [(part.get("special_tokens") or {}).get(name, {}).get("ids") for name in names]
    return _ids(ids[0], engine) if len(ids) == 1 else set()


def _ids(value: Any, engine: Engine) -> set[int]:
    numbers = value if isinstance(value, list) else [value]
    return {one for one in numbers if type(one) is int and 0 <= one < engine.vocabulary_size}


def dtype_for(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint8, uint16 and uint32, little-endian, that holds every id below ``vocabulary_size``."""
    if vocabulary_size <= 1 << 8:
        return np.dtype("<u1")
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
