"""How commands are declared: with their words, examples and options, and every setting as a flag of the same name."""

import errno
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from tokenmill.errors import BrokerError, InputError, SettingsError, TokenMillError, TopicError

from ..logs import set_up_logging
from ..settings import SECRETS, ConnectionSettings, Settings, TopicSettings, load_with_origins
from ..settings.model import ENVIRONMENT_PREFIX, Loaded, described
from ..settings.values import as_variable
from ..terminal import STAND_INS

F = TypeVar("F", bound=Callable[..., Any])

FLAGS: Final = tuple(name for name in Settings.model_fields if name != "topic" and name not in SECRETS)
"""All settings but the tables of single topics, which have no room on a command line, and passwords."""
SHOWN_PANEL: Final = "Settings"
TOKENS_PANEL: Final = "Settings that decide the tokens"
CONNECTION_PANEL: Final = "Settings of the connection to the brokers"
OTHER_PANEL: Final = "Other settings"
FOLDED: Final = frozenset({TOKENS_PANEL, CONNECTION_PANEL, OTHER_PANEL})
"""Panels that help shows with ``--help-all`` alone: together they are four screens."""
ALL: Final = "help_all"


def panel(title: str | None) -> Callable[..., Any]:
    """Return how options in this part of the help are declared: by their help, what stands for a value, their names."""

    def declared(text: str, value: str | None = None, *names: str, **more: Any) -> Any:
        return typer.Option(*names, metavar=value, help=text, rich_help_panel=title, **more)

    return declared


def require_beside(other: str, given: object, **options: object) -> None:
    """Raise InputError where one of the ``options`` is given without the ``other`` one, and so would do nothing."""
    for name, value in options.items():
        if value and not given:
            raise InputError(f"--{name.replace('_', '-')} does nothing without {other}: give both, or leave it out")


def require_directory(flag: str, path: Path) -> None:
    """Make the directory if need be; raises InputError, with the flag's name, where files cannot be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"{flag} {path} {_why(error, path)}: name a directory, new or old, to write to") from error


def require_file(flag: str, path: Path) -> None:
    """Make a file's directory if need be; raises InputError, with the flag's name, where it cannot be written."""
    if path.is_dir():
        raise InputError(f"{flag} {path} is a directory: name the file to write")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"{flag} {path} may not be written by this user: name another file, or change its rights")
    require_directory(f"{flag} {path}:", path.parent)


def _why(error: OSError, path: Path) -> str:
    if error.errno in {errno.EEXIST, errno.ENOTDIR}:
        found = next((place for place in (path, *path.parents) if place.exists()), path)
        return f"is no directory, for {found} is a file" if found != path else "is a file"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "may not be written to by this user"
    return f"cannot be written to ({error.strerror})"


def argument(text: str, value: str | None = None) -> Any:
    """Return how an argument is declared: by its help, and what stands for a value."""
    return typer.Argument(metavar=value, help=text, show_default=False)


option: Final = panel(None)
OneStream = Annotated[str, argument("The stream's name.", "STREAM")]
RawTopic = Annotated[str, argument("The raw topic.", "RAW_TOPIC")]
SomePartitions = Annotated[list[int] | None, argument("Only these partitions.", "[PARTITION]...")]
SomeStreams = Annotated[
    list[str] | None, option("Only this stream; may be given again. Default: all of raw_topics.", "NAME", "--stream")
]
KeepFrom = Annotated[
    list[Path] | None,
    option(
        "Free what no run needs that goes on from the state in this file (state_dict() of Batches); may be given "
        "again.",
        "STATE.json",
        "--keep-from",
    ),
]
Yes = Annotated[bool, option("Do not ask; without a terminal there is no question anyway.", None, "--yes", "-y")]
DryRun = Annotated[bool, option("Change nothing; say what would be done.", None, "--dry-run")]
All = Annotated[bool, option("Show all there is, not only the answer.", None, "--all")]
AsJson = Annotated[bool, option("Print JSON, for pipes.", None, "--json")]


DECLARED: Final[dict[str, tuple[Callable[..., Any], str | None]]] = {}
"""By the words that are typed, as ``dead-letters list``, the loaded modules' commands: the function, and help's end."""


def command(
    words: str, *examples: str, shown: Sequence[str] = ("bootstrap_servers",), bucket: bool = False
) -> Callable[[F], F]:
    """Declare the decorated function as a command, by the words that are typed and by examples of it.

    One whose first parameter is ``settings`` or ``loaded`` gets ``--config`` and a flag for every setting, of which
    help shows those for ``shown``; it is called with the settings in force, or with these and where they came from.
    With ``bucket``, the store may be the address of one; another command that has a store refuses that.
    """

    def declare(function: F) -> F:
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            for declared in getattr(parameter.annotation, "__metadata__", ()):
                if parameter.default is False and declared.default is ...:  # no name: typer would make a `--no-…`, too
                    declared.param_decls = (f"--{name.replace('_', '-')}",)
        first = next(iter(parameters), "")
        called = _with_flags(function, shown, words, bucket=bucket) if first in {"settings", "loaded"} else function
        DECLARED[words] = called, "\n\n".join(["Examples:", *examples]) if examples else None
        return function

    return declare


def _with_flags(command: Callable[..., Any], shown: Sequence[str], words: str, *, bucket: bool) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    first, *own = signature.parameters.values()
    # a command's own option of a setting's name goes first
    flags = [name for name in FLAGS if name not in signature.parameters]

    @wraps(command)
    def run(**arguments: Any) -> Any:
        said = {name: arguments.pop(name) for name in flags}
        arguments.pop(ALL)
        for name in [name for name in SECRETS if arguments.pop(name) is not None]:
            raise SettingsError(
                f"{name} is no flag, because everyone on this machine can read a command line: set "
                f"{ENVIRONMENT_PREFIX}{name.upper()}, or {name} in the settings file, and consider this one known"
            )
        loaded = load_with_origins(said, arguments.pop("config"))
        # Quiet, for a command's own messages; the service's commands set their logs up by their settings.
        set_up_logging("auto", "warning", libraries="critical")
        if bucket or "store" in shown:
            loaded = _with_store(loaded, words, bucket=bucket)
        try:
            return command(loaded if first.name == "loaded" else loaded.settings, **arguments)
        except (BrokerError, TopicError) as error:
            from ..tools.inspect.packed import without_topics  # noqa: PLC0415 - it needs numpy

            with suppress(OSError, ValueError, TokenMillError):  # the store is no store, or damaged
                if more := without_topics(loaded.settings.store):
                    error.args = (f"{error}. {more}",)
            raise

    first_shown = [*(name for name in shown if name in flags), *(name for name in flags if name not in shown)]
    options = [_option(name, shown=name in shown) for name in first_shown]
    declared = panel(SHOWN_PANEL)
    text = "TOML file with settings (TOKENMILL_CONFIG; default: tokenmill.toml, if it exists)."
    config = _flag("config", Path | None, None, declared(text, "FILE", "--config"))
    text = "Show all settings, and exit. Each is a flag, a variable and a line of that file: docs/settings.md."
    everything = declared(text, None, "--help-all", is_eager=True, callback=_help_all)
    # in no help: who tries one is told why there is none
    hidden = [
        _flag(name, str | None, None, typer.Option(f"--{name.replace('_', '-')}", hidden=True))
        for name in sorted(SECRETS)
    ]
    hidden.append(_flag(ALL, bool, default=False, declared=everything))
    parameters = [*own, config, *options, *hidden]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _with_store(loaded: Loaded, words: str, *, bucket: bool) -> Loaded:
    from tokenmill.bucket.objects import address_of  # noqa: PLC0415 - most commands need no buckets

    store = loaded.settings.store
    if (address := address_of(store)) is None:
        return loaded
    if not bucket:
        raise InputError(
            f"store is {address}, and `tokenmill {words}` needs a store on a disk of this host: name its directory "
            f"with --store. `tokenmill mirror --store DIRECTORY --from {address}` makes one of the bucket"
        )
    return loaded._replace(settings=loaded.settings.model_copy(update={"store": open_store(store)}))


def open_store(store: Path) -> Path:
    """Return a store that is given by its path or as a bucket, whose address is shown in place of the folder's."""
    from tokenmill.bucket.cache import open_temporarily  # noqa: PLC0415 - most commands need no numpy
    from tokenmill.bucket.objects import address_of  # noqa: PLC0415 - as above

    opened = open_temporarily(store)
    if (address := address_of(store)) is not None:
        STAND_INS[str(opened)] = address
    return opened


def _flag(name: str, kind: Any, default: object, declared: Any) -> inspect.Parameter:
    annotation = Annotated[kind, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
    default = as_variable(Settings.model_fields[name].default)
    text = f"{described(name)}{f' Default: {default}.' if default else ''}"
    flag = f"--{name.replace('_', '-')}"
    others = CONNECTION_PANEL if name in ConnectionSettings.model_fields else OTHER_PANEL
    folded = TOKENS_PANEL if name in TopicSettings.model_fields else others
    declared = panel(SHOWN_PANEL if shown else folded)(text, "VALUE", flag, show_default=False)
    return _flag(name, str | None, None, declared)
