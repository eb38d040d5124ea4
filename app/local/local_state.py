"""A directory with all that one local TokenMill needs: broker, store, logs and settings. `demo` and `up` share it."""

import itertools
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from tokenmill.errors import SettingsError

from ..settings import SECRETS, Settings
from ..settings.explain import explain
from .output_files import write_private

DEMO_DIRECTORY: Final = Path(".tokenmill/demo")


class LocalState:
    """The paths in the directory; none exists until it is made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = directory / "broker"
        """All that the broker writes."""
        self.store = directory / "store"
        self.logs = directory / "logs"
        """Of the supervisor and of each worker."""
        self.settings_file = directory / "tokenmill.toml"
        """Settings, for ``--config`` of any command while the broker runs."""

    def new_name(self, name: str) -> str:
        """Return ``name-1``, or the first ``name-n`` that was never returned before; ``runs/`` remembers."""
        for number in itertools.count(1):
            run = self.directory / "runs" / f"{name}-{number}"
            if not run.exists():
                run.mkdir(parents=True)
                return run.name
        raise AssertionError  # count has no end

    def save(self, settings: Settings) -> None:
        """Write the settings that differ from the defaults, without passwords; only the owner can read the file."""
        values = settings.model_dump(mode="json", exclude_unset=True, exclude={"topic", *SECRETS})
        # As JSON in a string where a value has null, for which TOML has no word.
        told = {name: json.dumps(value) if _has_null(value) else value for name, value in values.items()}
        lines = [f"{name} = {_inline(told[name])}\n" for name, value in values.items() if value is not None]
        write_private(self.settings_file, "".join(lines))

    def saved(self) -> Settings | None:
        """Return what `save` wrote; None where it never did.

        Raises SettingsError where the file was changed, and cannot be used.
        """
        if not self.settings_file.exists():
            return None
        try:
            return Settings(**tomllib.loads(self.settings_file.read_text("utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError) as error:
            why = explain(error, SECRETS) if isinstance(error, ValidationError) else str(error)
            raise SettingsError(f"{self.settings_file}: {why}; correct it, or remove it") from None


def program() -> str:
    """Return how the command line was called, for a command that can be typed again."""
    called = Path(sys.argv[0])
    if called.name != "tokenmill":
        return "python -m tokenmill.app.cli"
    return "tokenmill" if shutil.which("tokenmill") == str(called) else str(called)


def _inline(value: object) -> str:
    """Return a value on one line; strings and numbers are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value).replace("\x7f", r"\u007f")


def _has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None
