"""The command line, ``tokenmill``. One module per group of commands; a new one is a new module and a name in `GROUPS`.

Data goes to standard output, messages to standard error. The exit code says what kind of thing went wrong
(`tokenmill.errors`); 2 also stands for wrong usage, 130 for Ctrl-C.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol

import typer

from tokenmill.errors import TokenMillError

from . import (
    adopt,
    broker,
    config,
    demo,
    inspect,
    mill,
    produce,
    repair,
    retire,
    segment,
    serve,
    skip,
    tokenizer,
    topics,
    train_tokenizer,
    up,
    verify,
)
from .output import say

INTERRUPTED: Final = 130
"""What shells make of a process that SIGINT ended: 128 + 2."""


class Group(Protocol):
    """A module of commands."""

    def register(self, app: typer.Typer) -> None:
        """Add the module's commands to the command line."""


GROUPS: Final[tuple[Group, ...]] = (
    *(demo, up, produce, serve, mill, segment),
    *(verify, inspect, repair, retire, adopt, skip, topics, train_tokenizer, tokenizer, broker, config),
)
"""The modules, in the order in which help lists their commands."""


def create_cli() -> typer.Typer:
    """Return the command line with all commands."""
    app = typer.Typer(
        name="tokenmill",
        help="Raw text in Kafka becomes training-ready token blocks, once each, in an order all trainers agree on.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a deliberate error is one line (`main`); any other needs its traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for group in GROUPS:
        group.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command of ``arguments`` (of the process without them) and exit with its code."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own function may lie where they stand, as for `python -m`
    try:
        create_cli()(arguments, prog_name="tokenmill")
    except TokenMillError as error:
        say(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)
