"""Settings from their layers: flags, then TOKENMILL_… variables, then a TOML file, then defaults."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from tokenmill.errors import SettingsError
from tokenmill.spelling import nearest

from .explain import DEFAULT_ORIGIN, explain
from .model import ENVIRONMENT_PREFIX, SECRETS, Settings

CONFIG_VARIABLE: Final = "TOKENMILL_CONFIG"
DEFAULT_CONFIG: Final = Path("tokenmill.toml")


class Loaded(NamedTuple):
    """The settings in force, and for each name where its value came from, in words."""

    settings: Settings
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Values of one place; ``origins`` says in words where each was written."""

    values: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)


def load_settings(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Return the settings in force; the first of flags, environment, file and defaults that has a name decides it.

    ``flags`` holds what a command line said (values may be strings, None means not said). ``config`` names the TOML
    file; without it the variable TOKENMILL_CONFIG does, else ``tokenmill.toml`` is read if it is there. Raises
    SettingsError where a name is unknown, a value does not fit, or the file cannot be read; names the place.
    """
    return load_with_origins(flags, config).settings


def load_with_origins(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Loaded:
    """Do as `load_settings`, and say for each setting where its value came from."""
    layers = (_flags(flags or {}), _environment(), _file(config))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in Settings.model_fields:
        layer = next((layer for layer in layers if name in layer.values), None)
        origins[name] = DEFAULT_ORIGIN if layer is None else layer.origins[name]
        if layer is not None:
            values[name] = layer.values[name]
    try:
        return Loaded(Settings(**values), origins)
    except ValidationError as error:
        raise SettingsError(explain(error, SECRETS, origins)) from None


def _flags(flags: Mapping[str, Any]) -> _Layer:
    said = {name: value for name, value in flags.items() if value is not None}
    origins = {name: f"flag --{name.replace('_', '-')}" for name in said}
    _refuse_unknown(origins)
    return _Layer(said, origins)


def _environment() -> _Layer:
    names = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE]
    variables = {name.removeprefix(ENVIRONMENT_PREFIX).lower(): name for name in names}
    origins = {setting: f"variable {name}" for setting, name in variables.items()}
    _refuse_unknown(origins)
    return _Layer({setting: os.environ[name] for setting, name in variables.items()}, origins)


def _file(config: Path | None) -> _Layer:
    said = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if said is None and not DEFAULT_CONFIG.exists():
        return _Layer({})
    path = said or DEFAULT_CONFIG
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}; check --config and {CONFIG_VARIABLE}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}; correct it, or name another file with --config") from error
    origins = dict.fromkeys(values, f"file {path}")
    _refuse_unknown(origins)
    return _Layer(values, origins)


def _refuse_unknown(origins: Mapping[str, str]) -> None:
    for name, origin in origins.items():
        if name not in Settings.model_fields:
            hint = nearest(name, Settings.model_fields) or "; `tokenmill config` lists all"
            raise SettingsError(f"unknown setting {name} ({origin}){hint}")
