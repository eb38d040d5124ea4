"""Settings from their layers: flags, then TOKENMILL_… variables, then a TOML file, then defaults."""

import os
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

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


_Layer: TypeAlias = dict[str, tuple[Any, str]]
"""By setting: its value in one place, and in words where that was written."""


def load_settings(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Return the settings in force; the first of flags, environment, file and defaults that has a name decides it.

    ``flags`` holds what a command line said (values may be strings, None means not said). ``config`` names the TOML
    file; without it the variable TOKENMILL_CONFIG does, else ``tokenmill.toml`` is read if it is there. Raises
    SettingsError where a name is unknown, a value does not fit, or the file cannot be read; names the place.
    """
    return load_with_origins(flags, config).settings


def load_with_origins(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> Loaded:
    """Do as `load_settings`, and say for each setting where its value came from."""
    said = ChainMap(_known(_flags(flags or {})), _known(_environment()), _known(_file(config)))
    origins = {name: said[name][1] if name in said else DEFAULT_ORIGIN for name in Settings.model_fields}
    try:
        return Loaded(Settings(**{name: value for name, (value, _) in said.items()}), origins)
    except ValidationError as error:
        raise SettingsError(explain(error, SECRETS, origins)) from None


def _flags(flags: Mapping[str, Any]) -> _Layer:
    return {name: (value, f"flag --{name.replace('_', '-')}") for name, value in flags.items() if value is not None}


def _environment() -> _Layer:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): (value, f"variable {name}")
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE
    }


def _file(config: Path | None) -> _Layer:
    said = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if said is None and not DEFAULT_CONFIG.exists():
        return {}
    path = said or DEFAULT_CONFIG
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}; check --config and {CONFIG_VARIABLE}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}; correct it, or name another file with --config") from error
    return {name: (value, f"file {path}") for name, value in values.items()}


def _known(layer: _Layer) -> _Layer:
    """Return a layer of which all names are those of settings. Raises SettingsError where one is not."""
    for name, (_, origin) in layer.items():
        if name not in Settings.model_fields:
            hint = nearest(name, Settings.model_fields) or "; `tokenmill config` lists all"
            raise SettingsError(f"unknown setting {name} ({origin}){hint}")
    return layer
