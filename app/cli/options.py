"""Every setting as a flag of the same name, for the commands that use settings."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from tokenmill.errors import SettingsError

from ..logs import set_up_logging
from ..settings import SECRETS, ConnectionSettings, Loaded, Settings, TopicSettings, load_with_origins
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
SHOWN_PANEL: Final = "Settings"
TOKENS_PANEL: Final = "Settings that decide the tokens"
CONNECTION_PANEL: Final = "Settings of the connection to the brokers"
OTHER_PANEL: Final = "Other settings"
FOLDED: Final = frozenset({TOKENS_PANEL, CONNECTION_PANEL, OTHER_PANEL})
"""Panels that help shows with ``--help-all`` alone: together they are four screens."""
ALL: Final = "help_all"


def panel(title: str) -> Callable[..., Any]:
    """Return how options in this part of the help are declared: by their help, what stands for a value, their names."""

    def declared(text: str, value: str | None = None, *names: str, **more: Any) -> Any:
        return typer.Option(*names, metavar=value, help=text, rich_help_panel=title, **more)

    return declared


def with_settings(command: Callable[Concatenate[Settings, P], R], *shown: str) -> Callable[..., R]:
    """Return the command with a flag for every setting and ``--config``; it is called with the settings in force.

    Of these flags, help shows those for ``shown``, else the brokers' address; ``--help-all`` shows them all.

    Raises (when called):
        SettingsError: as `load_settings`.

    """
    return _with_flags(command, lambda loaded: loaded.settings, shown or ("bootstrap_servers",))


def with_loaded(command: Callable[Concatenate[Loaded, P], R], *shown: str) -> Callable[..., R]:
    """Do as `with_settings`, for a command that also wants to know where the values came from."""
    return _with_flags(command, lambda loaded: loaded, shown or ("bootstrap_servers",))


def _with_flags(command: Callable[..., R], first: Callable[[Loaded], object], shown: Sequence[str]) -> Callable[..., R]:
    """Return the command with flags; it is called with ``first`` of what was loaded, then its own arguments."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    flags = [
        name for name in FLAGS if name not in signature.parameters
    ]  # a command's own option of that name goes first

    @wraps(command)
    def run(**arguments: Any) -> R:
        said = {name: arguments.pop(name) for name in flags}
        arguments.pop(ALL)
        _refuse_secrets({name for name in SECRETS if arguments.pop(name) is not None})
        loaded = load_with_origins(said, arguments.pop("config"))
        # Quiet, for a command's own messages; the service's commands set their logs up by their settings.
        set_up_logging("auto", "warning", libraries="critical")
        return command(first(loaded), **arguments)

    first_shown = [*(name for name in shown if name in flags), *(name for name in flags if name not in shown)]
    options = [_option(name, shown=name in shown) for name in first_shown]
    parameters = [*own, _config_option(), *options, *map(_forbidden, sorted(SECRETS)), _all_option()]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _config_option() -> inspect.Parameter:
    option = typer.Option(
        "--config",
        help="TOML file with settings (TOKENMILL_CONFIG; default: tokenmill.toml, if it exists).",
        metavar="FILE",
        rich_help_panel=SHOWN_PANEL,
    )
    annotation = Annotated[Path | None, option]
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _all_option() -> inspect.Parameter:
    option = typer.Option(
        "--help-all",
        help="Show all settings, and exit. Each is a flag, a variable and a line of that file: docs/settings.md.",
        is_eager=True,
        callback=_help_all,
        rich_help_panel=SHOWN_PANEL,
    )
    return inspect.Parameter(ALL, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])


def _help_all(context: typer.Context, *, said: bool) -> None:
    if said:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


class FoldedCommand(TyperCommand):
    """A command whose help shows few of the settings, behind its own options; they are flags all the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, without what `FOLDED` panels hold, unless all was asked for."""
        behind = [
            param
            for param in self.params
            if isinstance(param, TyperOption) and param.rich_help_panel in FOLDED and not ctx.meta.get(ALL)
        ]
        for param in behind:
            param.hidden = True
        try:
            super().format_help(ctx, formatter)
        finally:
            for param in behind:
                param.hidden = False


def fold_settings(app: typer.Typer) -> None:
    """Let all commands of a command line, its groups' too, be `FoldedCommand`."""
    for command in app.registered_commands:
        command.cls = FoldedCommand
        # Typer keeps a docstring's line breaks, which are meant for wider screens than most.
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            fold_settings(group.typer_instance)


def _option(name: str, *, shown: bool) -> inspect.Parameter:
    """Return a flag that takes any text: the settings judge it, with one wording for all layers."""
    field = Settings.model_fields[name]
    default = as_variable(field.default)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=f"{field.description}{f' Default: {default}.' if default else ''}",
        metavar="VALUE",
        show_default=False,
        rich_help_panel=SHOWN_PANEL if shown else _panel(name),
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(name: str) -> str:
    if name in TopicSettings.model_fields:
        return TOKENS_PANEL
    return CONNECTION_PANEL if name in ConnectionSettings.model_fields else OTHER_PANEL


def _forbidden(name: str) -> inspect.Parameter:
    """Return a flag that no help shows, so that an attempt is answered with why there is none."""
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
