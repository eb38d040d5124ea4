"""What differs between a stream's recipe and another one, in the words of the settings that people write."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tokenmill.packings import packing_in_words
from tokenmill.recipe import Recipe

PLAIN: Final = (
    "raw_topic",
    "start",
    "decode",
    "text_fields",
    "id_field",
    "metadata_fields",
    "max_text_bytes",
    "max_id_bytes",
    "max_fields_bytes",
    "normalize",
    "min_chars",
    "function",
    "shards",
    "splits",
    "split_by",
    "split",
    "packing",
    "sequence_length",
    "allow_flush",
    "pipeline",
    "dedup",
    "special_tokens_in_text",
)
"""What a recipe has from the settings alone, without loading a tokenizer or a function."""
_FRAME: Final = ("begin_of_document", "end_of_document", "padding")
_TOKENIZER: Final = ("tokenizer_sha256", "vocabulary_size", "probe", "dtype", *_FRAME)
_SHOWN_DIGITS: Final = 12
"""Digits of a hash: enough to compare it with `sha256sum` by eye."""


def plain_differences(stream: Recipe, here: Recipe) -> list[str]:
    """Return differences that need no tokenizer, ``name: the stream has …, here …``; ``here`` may be a draft."""
    return [
        f"{SETTINGS.get(name, name)}: the stream has {_shown(name, mine)}, here {_shown(name, theirs)}"
        for name in PLAIN
        if (mine := _value(stream, name)) != (theirs := _value(here, name))
        and not (name == "max_text_bytes" and theirs == 0)
    ]


def differences(stream: Recipe, here: Recipe) -> list[str]:
    """Return what differs, each as ``name: the stream has …, here …``; of hashes, only those of tokenizer files."""
    found = plain_differences(stream, here)
    said = {line.partition(":")[0] for line in found}
    if stream.decoded_otherwise(here):
        found.append(f"decode: the stream has {_steps(stream.decoder)}, here {_steps(here.decoder)}")
    same_file = stream.tokenizer_sha256 == here.tokenizer_sha256
    if stream.normalized_length != here.normalized_length and not said & {"normalize", "max_text_bytes"} and same_file:
        limits = [one.normalized_length or "no limit" for one in (stream, here)]
        found.append(f"normalized_length: the stream has {limits[0]}, here {limits[1]}")
    mine, theirs = (_other_steps(one) for one in (stream, here))
    if mine != theirs and not said & {"normalize", "min_chars", "function", "steps"}:
        mine, theirs = (
            tuple(step for step in one if step not in other) for one, other in ((mine, theirs), (theirs, mine))
        )
        setting = "function" if any(step.get("name") == "function" for step in (*mine, *theirs)) else "steps"
        found.append(f"{setting}: the stream has {_steps(mine)}, here {_steps(theirs)}")
    return found + _of_tokenizers(stream, here)


def step_in_words(entry: Mapping[str, Any]) -> str:
    """Return a step as people write it on one line: ``regex(pattern = "a+")``."""
    values = ", ".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items() if name != "name"
    )
    return f"{entry['name']}({values})" if values else str(entry["name"])


def _other_steps(recipe: Recipe) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        step for step in recipe.steps if step not in recipe.decoder and step.get("name") != "normalized_length"
    )


def _of_tokenizers(stream: Recipe, here: Recipe) -> list[str]:
    """Return one line where the tokenizer differs, which decides the other fields; else one for each of these."""
    if all(getattr(stream, name) == getattr(here, name) for name in _TOKENIZER):
        return []
    if stream.tokenizer_sha256 != here.tokenizer_sha256:
        return [f"tokenizer: the stream has {_tokenizer(stream)}, here {_tokenizer(here)}"]
    pairs = [(name, getattr(stream, name), getattr(here, name)) for name in _FRAME]
    frame = [f"{name}: the stream has {_id(mine)}, here {_id(other)}" for name, mine, other in pairs if mine != other]
    if frame:
        return frame
    return ["tokenizer: the same file, to which the libraries that are installed here give other ids"]


def _id(value: int | tuple[int, ...] | None) -> str:
    """Return an id, or several; padding without one is that of the end of a document."""
    if isinstance(value, int):
        return f"id {value}"
    return f"ids {', '.join(map(str, value))}" if value else "none of its own"


def _tokenizer(recipe: Recipe) -> str:
    return f"one of {recipe.vocabulary_size:,} ids (SHA-256 {recipe.tokenizer_sha256[:_SHOWN_DIGITS]}…)"


def _steps(steps: tuple[Mapping[str, Any], ...]) -> str:
    shown = [
        ", ".join(f"{name} {value}" for name, value in step.items() if name not in {"probe", "sha256"})
        for step in steps
    ]
    return f"[{'; '.join(shown)}]"


def _value(recipe: Recipe, name: str) -> Any:
    return packing_in_words(recipe.packing, recipe.packing_parameters) if name == "packing" else getattr(recipe, name)


def _shown(name: str, value: Any) -> str:
    return _SHOW.get(name, str)(value) or "nothing"


SETTINGS: Final = {"split": "splits", "raw_topic": "raw_topics", "pipeline": "steps"}
"""Settings that have another name than the field of a recipe that they decide."""
_SHOW: Final[Mapping[str, Callable[[Any], str]]] = {
    "allow_flush": lambda value: str(value).lower(),
    "dedup": lambda value: step_in_words(value) if value else "",
    "metadata_fields": ",".join,
    "pipeline": lambda value: ", ".join(map(step_in_words, value)),
    "function": lambda value: value or "",
    "splits": lambda value: ",".join(f"{name}={size}" for name, size in value),
    "text_fields": ",".join,
}
