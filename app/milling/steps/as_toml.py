"""Steps written out as TOML, with every parameter and what it means: to be pasted into tokenmill.toml and changed."""

import json
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any, Final

from tokenmill.parameters import Parameter, parameters_of, plain

from .registry import STEPS

WIDTH: Final = 100
"""Characters of a comment line."""


def steps_as_toml(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return tables ``[[steps]]`` with all parameters, each below a comment that says what it does.

    A parameter without a value is a comment, for TOML has no word for nothing.
    """
    return "\n".join("\n".join([*_table(entry), ""]) for entry in entries)


def toml_value(value: Any) -> str:
    """Return a parameter's value as TOML has it."""
    return json.dumps(plain(value), ensure_ascii=False).replace("\x7f", r"\u007f")


def _table(entry: Mapping[str, Any]) -> Iterator[str]:
    step = STEPS[str(entry["name"])].step
    yield from _comment((step.__doc__ or "").partition("\n")[0])
    yield "[[steps]]"
    yield f"name = {toml_value(entry['name'])}"
    for parameter in parameters_of(step):
        yield from _comment(parameter.description)
        yield _line(parameter, entry.get(parameter.name, parameter.default))


def _line(parameter: Parameter, value: Any) -> str:
    if value is None or (parameter.required and value is parameter.default):
        why = "must be given" if parameter.required else "not set"
        return f"# {parameter.name} =    # {why}; {parameter.kind_in_words}"
    return f"{parameter.name} = {toml_value(value)}"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text.replace("``", "`"), WIDTH))
