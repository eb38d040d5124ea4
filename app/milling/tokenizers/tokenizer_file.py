"""What the setting ``tokenizer`` names: a file, a folder, a name on the Hugging Face hub, or raw bytes.

Files of tokenizers that are no ``tokenizer.json`` are told apart, and how each is converted is said.
"""

import json
import logging
import os
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tokenmill.documents import MAX_TEXT_BYTES, MAX_TOKENIZED_BYTES
from tokenmill.errors import SettingsError
from tokenmill.recipe import RAW_BYTES_SHA256
from tokenmill.untrusted import parse_json, read_regular

from ..hub import listening, reason

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
    """Return the most bytes that a text has in UTF-8 where ``max_text_bytes`` is not set, by the setting ``tokenizer``.

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
    return TokenizerFile(name, content, dict(_beside(name, path)))


def _beside(name: str, path: Path) -> Iterator[tuple[str, Any]]:
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
    """Return the path of the file, fetched if need be."""
    if name.startswith(HUB):
        return _pinned(name)
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


def _pinned(name: str) -> Path:
    """Return the path of the file that an ``hf://`` name names."""
    model, at, revision = name.removeprefix(HUB).partition("@")
    if not _is_hub_name(model) or (at and not revision):
        raise SettingsError(
            f'tokenizer = "{name}": write hf://owner/model@revision, with a commit, tag or branch, or hf://owner/model'
        )
    return _fetch(name, model, revision or None)


def _is_hub_name(name: str) -> bool:
    """Whether ``name`` is ``model`` or ``owner/model`` and cannot be meant as a path."""
    parts = name.split("/")
    return (
        len(parts) in (1, 2) and all(parts) and not name.startswith((".", "~")) and not name.lower().endswith(_SUFFIXES)
    )


def _fetch(name: str, model: str, revision: str | None = None) -> Path:
    """Return the path of a model's file; ``name`` is the setting, for messages."""
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
