"""The command line, ``tokenmill``. A new command is a module beside this one and a line in `COMMANDS`.

Data goes to standard output, messages to standard error. The exit code says what kind of thing went wrong
(`tokenmill.errors`); 2 also means wrong usage, 130 for Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, cast

from tokenmill.errors import InputError, TokenMillError
from tokenmill.extras import missing_extra
from tokenmill.processes import collect_seldom

from ..terminal import escaped, escaped_lines, guard_streams

if TYPE_CHECKING:  # typer comes with an extra, and `main` says so where it is missing
    import typer

BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "1")
"""Said to numpy before it is loaded, unless the environment says it. Nothing here multiplies matrices, and in each
process that starts a thread for every further core would wait for such work, busily, for a tenth of a second. Whose own
filter or transform does, sets the variable."""
INTERRUPTED: Final = 130
"""What shells make of a process that SIGINT ended: 128 + 2."""


class Group(Protocol):
    """A module of commands."""

    def register(self, app: "typer.Typer") -> None:
        """Add the module's commands to the command line."""


COMMANDS: Final = {
    "demo": "local_kafka",
    "up": "local_kafka",
    "produce": "produce",
    "flush": "produce",
    "pack": "pack",
    "serve": "workers",
    "mill": "workers",
    "segment": "workers",
    "mirror": "workers",
    "try": "trying",
    "verify": "verify",
    "status": "status",
    "ledger": "status",
    "eras": "control_records",
    "close": "control_records",
    "inspect": "inspect",
    "trace": "trace",
    "dead-letters": "dead_letters",
    "rejects": "dead_letters",
    "repair": "stores",
    "retire": "stores",
    "adopt": "stores",
    "export": "exports",
    "describe": "exports",
    "skip": "control_records",
    "ignore": "control_records",
    "topics": "settings_and_topics",
    "train-tokenizer": "tokenizer",
    "tokenizer": "tokenizer",
    "broker": "local_kafka",
    "steps": "settings_and_topics",
    "config": "settings_and_topics",
    "version": "settings_and_topics",
}
"""Each command and its module, in the order in which help lists them."""


def create_cli(command: str | None = None) -> "typer.Typer":
    """Return the command line with all commands.

    Where the first argument is a ``command``, only its module is loaded: a worker that starts need not know the demo.
    """
    import typer  # noqa: PLC0415 - as above

    from .options import fold_settings  # noqa: PLC0415

    app = typer.Typer(
        name="tokenmill",
        help="Raw text in Kafka becomes training-ready token blocks, once each, in an order all trainers agree on.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a deliberate error is one line (`main`); any other needs its traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_nothing)  # with it, a command line of one command still wants that command's name
    modules = [COMMANDS[command]] if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for module in modules:
        cast("Group", import_module(f".{module}", __package__)).register(app)
    names = list(COMMANDS)
    app.registered_commands.sort(key=lambda one: names.index(str(one.name or getattr(one.callback, "__name__", ""))))
    app.registered_groups.sort(key=lambda one: names.index(str(one.name)))
    fold_settings(app)
    return app


def _nothing() -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command of ``arguments`` (of the process without them) and exit with its code."""
    guard_streams()
    collect_seldom()
    os.environ.setdefault(*BLAS_THREADS)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        create_cli(next(iter(given), None))(given, prog_name="tokenmill")
    except TokenMillError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        hint = missing_extra(error.name)
        if hint is None:
            raise
        _say(hint)
        sys.exit(InputError.exit_code)
    except OSError as error:  # of a path that a person gave, and that no place knew better
        if error.filename is None:
            raise
        _say(
            f"{escaped(str(error.filename))} cannot be used ({error.strerror}): check that the path is right, of the "
            "right kind, and that this user may read or write there"
        )
        sys.exit(InputError.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _say(message: str) -> None:
    # What has several lines quotes a log; none of them must look like a message of ours.
    lines = escaped_lines(message).replace("\n", "\n  ")
    print(f"tokenmill: {lines}", file=sys.stderr, flush=True)  # noqa: T201 - `output.say` needs typer
