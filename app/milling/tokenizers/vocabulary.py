"""The setting ``tokenizer``: a file, a folder, a name on the Hugging Face hub, or raw bytes; and what is known of it.

Files of tokenizers that are no ``tokenizer.json`` are told apart, and how each is converted is said. What a stream and
people must know of a tokenizer: tokens by name and with a usual meaning, the dtype of ids.
"""

import json
import logging
import os
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from tokenmill.documents import MAX_TEXT_BYTES, MAX_TOKENIZED_BYTES
from tokenmill.errors import SettingsError
from tokenmill.recipe import RAW_BYTES_SHA256
from tokenmill.untrusted import parse_json, read_regular

from .protocol import END_OF_DOCUMENT, Engine

_RANKS: Final = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
_TIKTOKEN_NAMES: Final = frozenset(
    {"r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base", "o200k_harmony"}
)
_SUFFIXES: Final = (".json", ".model", ".tiktoken", ".txt", ".vocab", ".bpe", ".spm")
"""Suffixes of tokenizer files, which no name on the hub has."""
_BESIDE: Final = ("tokenizer.model", "tekken.json", "vocab.txt", "vocab.json", "spiece.model", "merges.txt")
"""Files in folders of models that have no ``tokenizer.json``."""
_TRANSFORMERS: Final = (
    "make one of the model's folder with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW), "
    "and name NEW, or name the model on the hub"
)
_NAMED: Final = "name a model on the hub that has a tokenizer.json of the same vocabulary"


def beside(names: Collection[str]) -> str:
    """Return what a folder without ``tokenizer.json`` has instead, and what to do."""
    found = [name for name in _BESIDE if name in names] + sorted(n for n in names if n.endswith(".tiktoken"))
    if not found:
        return "name a folder that holds one"
    return f"it has {', '.join(found)}: {_TRANSFORMERS}"


def other_format(content: bytes) -> str | None:
    """Return what a file is that holds no ``tokenizer.json``, and what to do; None where it may hold one."""
    if _RANKS.match(content):
        return f"it holds ranks of bytes, as tiktoken has them: {_TRANSFORMERS}"
    if content[:1] == b"\n" and b"<unk>" in content[:4096]:  # field 1 of a protobuf: the first of its pieces
        return f"it is a model of SentencePiece: {_TRANSFORMERS}"
    try:
        value = json.loads(content.decode())
    except ValueError:
        return _other_text(content)
    return _other_json(value)


def _other_text(content: bytes) -> str:
    lines = content[:65536].splitlines()
    if {b"[UNK]", b"[PAD]", b"<unk>"} & set(lines):
        return (
            "it is a vocabulary of WordPiece, a token in each line: "
            'tokenizers.BertWordPieceTokenizer("vocab.txt").save("tokenizer.json") makes one of it'
        )
    if lines[:1] and lines[0].startswith(b"#version"):
        return (
            "it holds the merges of a BPE, without its ids: "
            'tokenizers.ByteLevelBPETokenizer("vocab.json", "merges.txt").save("tokenizer.json") makes one of both'
        )
    return (
        "it is no JSON in UTF-8: name a tokenizer.json, as `tokenmill train-tokenizer` writes and models on the hub "
        "have"
    )


def _other_json(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "its JSON is no object: name a tokenizer.json"
    if "model" in value and isinstance(value["model"], dict):
        return None
    if isinstance(value.get("vocab"), list):
        return f"it is a vocabulary of Tekken, Mistral's own format: {_NAMED}"
    if "tokenizer_class" in value or "model_type" in value or "architectures" in value:
        return "it describes a model or its tokenizer, and holds none: name the tokenizer.json beside it"
    if value and all(isinstance(number, int) for number in value.values()):
        return (
            "it holds the ids of a vocabulary alone: "
            'tokenizers.ByteLevelBPETokenizer("vocab.json", "merges.txt").save("tokenizer.json") makes one of both, '
            "if it is a BPE of bytes"
        )
    return "it has no model in it: name a tokenizer.json"


RAW_BYTES: Final = "bytes"
"""The name of the tokenizer that needs no file."""
FILE_NAME: Final = "tokenizer.json"
BESIDE: Final = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files that say which of its tokens ends a text, and the like."""
MOST_BESIDE: Final = 64 << 20
"""Bytes of one: a configuration may list all added tokens, and have templates of chats."""
HUB: Final = "hf://"
"""Begins a name that is meant on the hub, whatever is here; ``@`` and a revision may follow it."""

log = logging.getLogger(__name__)


def text_limit_of(tokenizer: str) -> int:
    """Return the most bytes of a text in UTF-8 where ``max_text_bytes`` is not set, by the setting ``tokenizer``.

    Where that is not set either, as for `produce` alone, nothing is too long that a mill may take.
    """
    return MAX_TEXT_BYTES if tokenizer in ("", RAW_BYTES) else MAX_TOKENIZED_BYTES


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer as bytes, wherever it came from."""

    name: str
    """As the setting gave it."""
    content: bytes | None
    """The bytes of the ``tokenizer.json``; None for raw bytes."""
    beside: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """By name, the files of `BESIDE` that were found beside it, as JSON values; they say what its tokens are for."""

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the content; of the word ``bytes`` for raw bytes."""
        return RAW_BYTES_SHA256 if self.content is None else sha256(self.content).hexdigest()


def load_tokenizer(name: str) -> TokenizerFile:
    """Read the tokenizer that ``name`` names.

    ``bytes``; else the path of a ``tokenizer.json`` or of a folder that holds one; else, where nothing of that name
    exists and it looks like one, a name on the hub (``HF_ENDPOINT``, ``HF_HOME`` and ``HF_TOKEN`` are honoured; what
    was fetched before is not fetched again without need). ``hf://name`` is on the hub in any case, and
    ``hf://name@revision`` is its state at a commit, tag or branch. Raises SettingsError where there is no such file, or
    the hub does not give it.
    """
    if name == RAW_BYTES:
        return TokenizerFile(name, None)
    path = _place(name)
    try:
        content = path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise SettingsError(f'tokenizer = "{name}": {path} cannot be read ({error}); check its permissions') from error
    if (other := other_format(content)) is not None:
        raise SettingsError(f'tokenizer = "{name}": {path} is no {FILE_NAME}; {other}')
    return TokenizerFile(name, content, dict(_found_beside(name, path)))


def _found_beside(name: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the files beside a ``tokenizer.json`` that describe it, and their values."""
    for file in BESIDE if path.name == FILE_NAME else ():
        try:
            content = read_regular(path.with_name(file), most=MOST_BESIDE)
            found = parse_json(content.removeprefix(BOM_UTF8), most=MOST_BESIDE)
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as error:
            raise SettingsError(
                f'tokenizer = "{name}": {path.with_name(file)} cannot be read ({error}): correct it, or name a copy of '
                f"{FILE_NAME} that is alone in its folder"
            ) from error
        yield file, found


def _place(name: str) -> Path:
    if name.startswith(HUB):
        model, at, revision = name.removeprefix(HUB).partition("@")
        if not _is_hub_name(model) or (at and not revision):
            raise SettingsError(
                f'tokenizer = "{name}": write hf://owner/model@revision, with a commit, tag or branch, or '
                "hf://owner/model"
            )
        return _fetch(name, model, revision or None)
    path = Path(name).expanduser()
    if path.is_dir() and name:
        if not (path / FILE_NAME).is_file():
            there = [file.name for file in path.iterdir()]
            raise SettingsError(f'tokenizer = "{name}": there is no file {path / FILE_NAME}; {beside(there)}')
        path /= FILE_NAME
    if path.is_file():
        return path
    if name in _TIKTOKEN_NAMES:
        raise SettingsError(
            f'tokenizer = "{name}": that is a vocabulary of tiktoken, of ranks without a tokenizer.json: {_NAMED}'
        )
    if not _is_hub_name(name):
        raise SettingsError(
            f'tokenizer = "{name}": there is no file {path}; name a tokenizer.json, a folder that holds one, '
            'a name on the hub, or "bytes"'
        )
    return _fetch(name, name)


def _is_hub_name(name: str) -> bool:
    """Whether ``name`` is ``model`` or ``owner/model`` and cannot be meant as a path."""
    parts = name.split("/")
    return (
        len(parts) in (1, 2) and all(parts) and not name.startswith((".", "~")) and not name.lower().endswith(_SUFFIXES)
    )


def _fetch(name: str, model: str, revision: str | None = None) -> Path:
    # imported here: it takes half a second, and only hub names need it
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    with listening() as heard:
        try:
            path = Path(hf_hub_download(model, FILE_NAME, revision=revision, endpoint=os.environ.get("HF_ENDPOINT")))
        except Exception as error:  # OSError, ValueError, RuntimeError, httpx's: they have changed with its versions
            raise SettingsError(
                f'tokenizer = "{name}" is neither a file here nor available from the hub ({reason(error, heard)}): '
                "check the name, its revision, the network and HF_ENDPOINT, log in if the model asks for it, or give "
                f"the path of a {FILE_NAME}"
            ) from error
    if heard:
        log.warning("the hub did not answer at once (%s): tokenizer %s is the one in %s", heard[0], name, path)
    with listening():
        for file in BESIDE:
            with suppress(Exception):  # many models have not all of these; a hub that is away has been named
                hf_hub_download(model, file, revision=path.parent.name, endpoint=os.environ.get("HF_ENDPOINT"))
    return path


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
    part, in_sequence = file.get(name), "normalizers" if name == "normalizer" else "pretokenizers"
    return list(part.get(in_sequence, [part])) if part else []


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


def renumbered(file: Mapping[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """Return the added tokens that get another id than the file says, as where its model has no token of some id."""
    tokens = file.get("added_tokens") or ()
    ids = added_ids(file) if tokens else {}
    return [(token, ids[token["content"]]) for token in tokens if token["id"] != ids[token["content"]]]


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
    """Return the id of a token by name, or by id where it is in digits and no name. Raises SettingsError: no token."""
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


_HUB_LOGGER: Final = "huggingface_hub.utils._http"
"""Logs each attempt through its own handler and through the root's, so each line would come twice."""


@contextmanager
def listening() -> Iterator[list[str]]:
    """Silence the hub's library inside the block; its messages are added to the list as they come."""
    heard: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        heard.append(record.getMessage())
        return False

    logger = logging.getLogger(_HUB_LOGGER)
    logger.addFilter(hear)
    try:
        yield heard
    finally:
        logger.removeFilter(hear)


def reason(error: Exception, heard: list[str]) -> str:
    """Return in one line why the hub gave nothing, by the first message in ``heard`` rather than by the error.

    After several attempts, the error may be one of the library itself, such as that its client has been closed.
    """
    text = heard[0] if heard else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
