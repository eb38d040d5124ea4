"""The parameters of a step or a packing: the fields of its dataclass, with types that are checked.

Each is described once, by the string below the field: for readers of the code, ``tokenmill steps show`` and docs.

A parameter may be a list in a file of the user's: its content decides, its path does not. The SHA-256 of its canonical
form is in the recipe, and the content is on the stream's control topic. So a worker with another content is refused,
and who verifies a stream elsewhere needs no file.
"""

import ast
import inspect
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from hashlib import sha256
from itertools import pairwise
from math import isfinite
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Final, Literal, Self, cast, get_args, get_origin, get_type_hints

from tokenmill.errors import SettingsError, nearest

MAX_TEXT: Final = 8192
"""Characters of a parameter that is text, and of each text in a list: the recipe holds them, in every genesis."""
MAX_ITEMS: Final = 1024
"""Items of a list that stands in the settings; longer ones belong in a file."""
MAX_LIST_BYTES: Final = 64 * 1024 * 1024
"""Largest file of a list, and largest canonical form: a million domains have 20 MB, and every worker reads it."""
DIGEST_PREFIX: Final = "sha256:"
"""Begins what a recipe has in place of a path."""


@dataclass(frozen=True, slots=True)
class ListFile:
    """The content of a list, in its canonical form."""

    sha256: str
    content: bytes = field(repr=False)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return the list with this content."""
        return cls(sha256(content).hexdigest(), content)

    @property
    def reference(self) -> str:
        """What a recipe has in place of a path."""
        return DIGEST_PREFIX + self.sha256

    def lines(self) -> list[str]:
        """Return the lines of a list in the form of `canonical_lines`."""
        return self.content.decode().split("\n")[:-1]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a step, as people read about it."""

    name: str
    kind: Any
    default: Any
    """`MISSING` where the parameter must be given."""
    description: str

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def kind_in_words(self) -> str:
        """What a value may be: "a number", for example."""
        return kind_in_words(self.kind)


def parameters_of(step: type[Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a step's class, in order; private fields and those that are not given are none."""
    return _parameters_of(cast("Hashable", step))


@cache
def _parameters_of(step: Any) -> tuple[Parameter, ...]:
    kinds, said = get_type_hints(step), _descriptions(step)
    return tuple(
        Parameter(field.name, kinds[field.name], default_of(field), said.get(field.name, ""))
        for field in fields(step)
        if field.init and not field.name.startswith("_")
    )


def checked_values(step: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values in their fields' types; raises SettingsError, beginning with ``where``, for what is none."""
    known = {parameter.name: parameter for parameter in parameters_of(step)}
    for name in values:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise SettingsError(f"{where}: unknown parameter {name}{nearest(name, known)}; {has}")
    missing = [parameter.name for parameter in known.values() if parameter.required and parameter.name not in values]
    if missing:
        raise SettingsError(f"{where}: {missing[0]} is missing; it is {known[missing[0]].kind_in_words}")
    found = {}
    for name, value in values.items():
        try:
            found[name] = _fitted(value, known[name].kind)
        except ValueError as error:
            said = str(error) or f"it must be {known[name].kind_in_words}"
            shown = repr(value)
            shown = shown if len(shown) <= 100 else f"{shown[:100]}…"  # noqa: PLR2004 - what a line has room for
            raise SettingsError(f"{where}: {name} = {shown}: {said}") from None
    return found


def canonical_choice(value: Any, kinds: Mapping[str, type[Any]], name: str, table: str) -> dict[str, Any]:
    """Return one of several ``kinds`` as a table of its ``name`` and the parameters that have not their default.

    ``name`` and ``table`` are examples for people. Raises SettingsError for what is unknown or cannot be used.
    """
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise SettingsError(f"it must be a name, {name}, or a table with a name and parameters, {table}")
    chosen = given["name"]
    if chosen not in kinds:
        raise SettingsError(f"{chosen!r} is unknown{nearest(chosen, kinds)}; there are {', '.join(kinds)}")
    values = checked_values(kinds[chosen], {key: one for key, one in given.items() if key != "name"}, chosen)
    made_with(kinds[chosen], values, chosen)
    return {"name": chosen, **dict(sorted(without_defaults(kinds[chosen], values).items()))}


def made_with(step: type, values: Mapping[str, Any], where: str) -> Any:
    """Return what its class makes of checked values; raises SettingsError, beginning with ``where``, if it refuses."""
    try:
        return step(**values)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from error


def without_defaults(step: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not their parameter's default, as JSON types."""
    defaults = {parameter.name: parameter.default for parameter in parameters_of(step)}
    return {name: plain(value) for name, value in values.items() if value != defaults[name]}


def require_within(name: str, value: int, least: int, below: int) -> None:
    """Raise ValueError where a whole number is out of its bounds."""
    if not least <= value < below:
        raise ValueError(f"{name} = {value}: set it to {least} or more, below {below:,}")


def kind_in_words(kind: Any) -> str:
    """Return what a value of this type is called in messages and on the page about steps."""
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is UnionType:
        return " or ".join(kind_in_words(one) for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return f"a list, each {kind_in_words(parts[0])}"
        return f"[{', '.join(kind_in_words(part) for part in parts)}]"
    return _WORDS[kind]


_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    ListFile: "the path of a file",
}


def _fitted(value: Any, kind: Any) -> Any:
    """Return the value in the type of its field. A ValueError without words means that it is of another type."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _fitted_to_one(value, parts)
    if origin is tuple:
        return _fitted_items(value, parts)
    if kind is float:
        fits = type(value) in {int, float} and isfinite(value)
    elif kind is str:
        fits = type(value) is str
        if fits and len(value) > MAX_TEXT:
            raise ValueError(f"it is longer than {MAX_TEXT:,} characters")
    elif kind is ListFile:
        fits = isinstance(value, ListFile) or (isinstance(value, str) and value != "")
    else:
        fits = value in parts if origin is Literal else type(value) is kind
    if not fits:
        raise ValueError
    return float(value) if kind is float else value


def _fitted_items(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError  # noqa: TRY004 - as all that does not fit
    if len(value) > MAX_ITEMS:
        raise ValueError(f"it has more than {MAX_ITEMS:,} items, so put them into a file")
    if kinds[-1] is Ellipsis:
        return tuple(_fitted(item, kinds[0]) for item in value)
    if len(value) != len(kinds):
        raise ValueError
    return tuple(_fitted(item, kind) for item, kind in zip(value, kinds, strict=True))


def _fitted_to_one(value: Any, kinds: tuple[Any, ...]) -> Any:
    said = ""
    for kind in kinds:
        if kind is NoneType:
            if value is None:
                return None
            continue
        try:
            return _fitted(value, kind)
        except ValueError as error:
            said = said or str(error)
    raise ValueError(said)


def default_of(field: Any) -> Any:
    """Return what a field has where nothing is given; `MISSING` where it must be given."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _descriptions(step: type) -> dict[str, str]:
    body = ast.parse(dedent(inspect.getsource(step))).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"{step.__name__} is no class")
    found = {}
    for line_and_below in pairwise(body.body):
        match line_and_below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                found[name] = " ".join(str(text).split())
    return found


def read_list_file(path: str, where: str) -> bytes:
    """Return what a list file holds; raises SettingsError, beginning with ``where``, where it cannot be used."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            f"{where}: cannot read {path}: {error.strerror}; name a file that every worker has"
        ) from error
    if len(content) > MAX_LIST_BYTES:
        raise SettingsError(f"{where}: {path} is larger than {MAX_LIST_BYTES >> 20} MiB, the most that a list may have")
    return content


def canonical_lines(content: bytes) -> bytes:
    """Return a list's entries sorted, one a line, without comments or empty lines; raises ValueError if no UTF-8."""
    stripped = {line.strip() for line in content.decode("utf-8-sig").split("\n")}
    entries = sorted(line for line in stripped if line and not line.startswith("#"))
    return "".join(f"{entry}\n" for entry in entries).encode()


def list_entries(written: tuple[str, ...] | ListFile) -> list[str]:
    """Return the entries of a list that stands in the settings or in a file."""
    return written.lines() if isinstance(written, ListFile) else list(written)


def describe_step(step: Any, *, version: int, **more: Any) -> dict[str, Any]:
    """Return a step's name, the version of its rules, its parameters (lists by SHA-256) and ``more``, as JSON types."""
    own = {field.name: plain(getattr(step, field.name)) for field in fields(step) if not field.name.startswith("_")}
    return {"name": step.name, "version": version, **own, **more}


def plain(value: Any) -> Any:
    """Return a parameter's value as JSON types."""
    if isinstance(value, ListFile):
        return value.reference
    return [plain(item) for item in value] if isinstance(value, tuple) else value
