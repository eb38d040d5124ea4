"""Addresses of data sets, ``hf://name?split=train``: which data set, and the arguments of its loader."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from tokenmill.errors import InputError

from .conditions import number_in

HUB: Final = "hf://"
_WORDS: Final = frozenset({"name", "split", "revision", "data_dir"})
"""Arguments that are text, whatever they look like: a commit may be all digits."""
_OURS: Final = {
    "path": "it is the part before the ?",
    "streaming": "data sets are always streamed",
    "num_proc": "data sets are streamed; --map-processes is for a function of yours",
    "keep_in_memory": "data sets are streamed",
    "save_infos": "data sets are streamed",
    "verification_mode": "data sets are streamed",
    "token": "it would be in ids and logs; set HF_TOKEN, or log in with `hf auth login`",
    "storage_options": "they hold keys, which would be in ids and logs; set them where the store's own tools look",
    "download_config": "it may hold a token, which would be in ids and logs; set HF_TOKEN",
    "trust_remote_code": "no code of a data set is run",
}
"""Arguments of `load_dataset` that an address cannot have, and why."""
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
HOW: Final = (
    "write it as hf://name, hf://owner/name or hf://name/configuration, and behind a ? what load_dataset is told: "
    "hf://owner/name?split=train&revision=main&languages=en,de"
)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """The address of a data set."""

    parts: tuple[str, ...]
    """Parts of the name, between its slashes."""
    name: str | None = None
    """Name of the configuration, where it is an argument."""
    split: str | None = None
    revision: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    """All others, for `load_dataset`: ``data_files``, ``data_dir``, and those of the data set's own loader."""

    @property
    def path(self) -> str:
        """The whole name."""
        return "/".join(self.parts)

    @classmethod
    def parse(cls, text: str) -> "HubAddress":
        """Return the parsed address, with or without ``hf://`` or ``hf://datasets/`` before it.

        Behind the ``?`` are ``key=value`` with ``&`` between them, with percent escapes as in any address. A value is
        true, false, null, a number, or a text; JSON where it begins with a quote, a bracket or a brace. A list has
        commas in it, or is a key that is given again. Raises InputError where it is invalid; says how to write one.
        """
        path, _, query = text.removeprefix(HUB).partition("?")
        parts = tuple(unquote(path).rstrip("/").split("/"))
        parts = parts[len(parts) > 2 and parts[0] == "datasets" :]  # noqa: PLR2004 - as fsspec writes OWNER/NAME
        found: dict[str, list[Any]] = {}
        for pair in query.split("&") if query else ():
            key, equals, value = pair.partition("=")
            key = unquote(key)
            if not equals or not _ARGUMENT.fullmatch(key):
                raise InputError(f"{text}: {pair!r} is no argument; {HOW}")
            if key in _OURS:
                raise InputError(f"{text}: {key}= cannot be given: {_OURS[key]}")
            found.setdefault(key, []).append(_read(text, key, value))
        if not parts[-1] or (several := [key for key in sorted(_WORDS & set(found)) if len(found[key]) > 1]):
            raise InputError(
                f"{text}: {'there is no name' if not parts[-1] else f'{several[0]}= is given twice'}; {HOW}"
            )
        values = {key: _one_or_all(each) for key, each in found.items()}
        own = {key: values.pop(key, None) for key in ("name", "split", "revision")}
        return cls(parts, **own, arguments=values)


def _read(address: str, key: str, raw: str) -> Any:
    value = unquote(raw)
    if key in _WORDS:
        return value
    if value[:1] in ('"', "[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise InputError(f"{address}: {key}= is no JSON ({error}), as which it begins") from error
    items = [unquote(item) for item in raw.split(",")]
    if len(items) > 1 and all(items):
        return [_typed(key, item) for item in items]
    return _typed(key, value)


def _typed(key: str, value: str) -> Any:
    if key == "data_files":  # names of files: also those that look like something else
        return value
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    number = number_in(value)
    return value if number is None else number


def _one_or_all(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]
