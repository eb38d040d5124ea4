"""Every setting as a flag of the same name, for the commands that use settings."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer

from tokenmill.errors import SettingsError

from ..logs import set_up_logging
from ..settings import SECRETS, Loaded, Settings, TopicSettings, load_with_origins
from ..settings.model import ENVIRONMENT_PREFIX
from ..settings.values import as_variable

P = ParamSpec("P")
R = TypeVar("R")

FLAGS: Final = tuple(name for name in Settings.model_fields if name != "topic" and name not in SECRETS)
"""All settings but the tables of single topics, which have no room on a command line, and passwords."""
OneStream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", show_default=False)]
SomePartitions = Annotated[
    list[int] | None, typer.Argument(metavar="[PARTITION]...", help="Only these partitions.", show_default=False)
]
"""Arguments of commands about a stream in a store."""
KeepFrom = Annotated[
    list[Path] | None,
    typer.Option(
        "--keep-from",
        metavar="STATE.json",
        help="Free what no run needs that goes on from the state in this file (state_dict() of Batches); may be "
        "given again.",
    ),
]
TOKENS_PANEL: Final = "Settings that decide the tokens"
OTHER_PANEL: Final = "Settings"


def with_settings(command: Callable[Concatenate[Settings, P], R]) -> Callable[..., R]:
    """Return the command with a flag for every setting and ``--config``; it is called with the settings in force.

    Raises (when called):
        SettingsError: as `load_settings`.

    """
    return _with_flags(command, lambda loaded: loaded.settings)


def with_loaded(command: Callable[Concatenate[Loaded, P], R]) -> Callable[..., R]:
    """Do as `with_settings`, for a command that also wants to know where the values came from."""
    return _with_flags(command, lambda loaded: loaded)


def _with_flags(command: Callable[..., R], first: Callable[[Loaded], object]) -> Callable[..., R]:
    """Return the command with flags; it is called with ``first`` of what was loaded, then its own arguments."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    flags = [
        name for name in FLAGS if name not in signature.parameters
    ]  # a command's own option of that name goes first

    @wraps(command)
    def run(**arguments: Any) -> R:
        said = {name: arguments.pop(name) for name in flags}
        _refuse_secrets({name for name in SECRETS if arguments.pop(name) is not None})
        loaded = load_with_origins(said, arguments.pop("config"))
        # Quiet, for a command's own messages; the service's commands set their logs up by their settings.
        set_up_logging("auto", "warning", libraries="critical")
        return command(first(loaded), **arguments)

    parameters = [*own, _config_option(), *map(_option, flags), *map(_forbidden, sorted(SECRETS))]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _config_option() -> inspect.Parameter:
    option = typer.Option(
        "--config",
        help="TOML file with settings (TOKENMILL_CONFIG; default: tokenmill.toml, if it exists).",
        metavar="FILE",
        rich_help_panel=OTHER_PANEL,
    )
    annotation = Annotated[Path | None, option]
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(name: str) -> inspect.Parameter:
    """Return a flag that takes any text: the settings judge it, with one wording for all layers."""
    field = Settings.model_fields[name]
    default = as_variable(field.default)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=f"{field.description}{f' Default: {default}.' if default else ''}",
        metavar="VALUE",
        show_default=False,
        rich_help_panel=TOKENS_PANEL if name in TopicSettings.model_fields else OTHER_PANEL,
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _forbidden(name: str) -> inspect.Parameter:
    """Return a flag that no help shows, so that who tries it is told why there is none."""
    annotation = Annotated[str | None, typer.Option(f"--{name.replace('_', '-')}", hidden=True)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _refuse_secrets(said: Iterable[str]) -> None:
    for name in said:
        raise SettingsError(
            f"{name} is no flag, because everyone on this machine can read a command line: set "
            f"{ENVIRONMENT_PREFIX}{name.upper()}, or {name} in the settings file, and consider this one known"
        )


def examples(*commands: str) -> str:
    """Return the end of a command's help: commands that work, one a line."""
    return "\n\n".join(["Examples:", *commands])
