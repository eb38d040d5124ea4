"""The command line, ``tokenmill``. A new command is a function beside this one, and a line in `COMMANDS`.

Data goes to standard output, messages to standard error. The exit code says what kind of thing went wrong
(`tokenmill.errors`); 2 also means wrong usage, 130 for Ctrl-C.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

from tokenmill import __version__

if TYPE_CHECKING:  # typer comes with an extra, and `main` says so where it is missing
    import typer

BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "1")
"""Said to numpy before it is loaded, unless the environment says it. Nothing here multiplies matrices, and in each
process that starts a thread for every further core would wait for such work, busily, for a tenth of a second. Whose own
filter or transform does, sets the variable."""
PLAIN_HELP: Final = "_TYPER_FORCE_DISABLE_TERMINAL"
"""Typer writes no styles where this is set; notebooks and others set FORCE_COLOR, by which it would do so in pipes."""
INTERRUPTED: Final = 130
"""What shells make of a process that SIGINT ended: 128 + 2."""


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
    "tail": "tail",
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
GROUPS: Final = {
    "inspect": "Look at a stream, a segment, a message, or one block's records.",
    "dead-letters": "What could not become a document: list, count, show, resend.",
    "topics": "The topics that the settings need: create, check.",
    "broker": "A local Kafka broker: start, stop, status.",
    "steps": "Filters and transforms of documents: what `steps` may name.",
}
"""Commands that have commands below them, and their help."""


def create_cli(command: str | None = None) -> "typer.Typer":
    """Return the command line with all commands.

    Where the first argument is a ``command``, only its module is loaded: a worker that starts need not know the demo.
    """
    import typer  # noqa: PLC0415 - as above

    from .options import DECLARED, fold_settings  # noqa: PLC0415

    app = typer.Typer(
        name="tokenmill",
        help="Raw text in Kafka becomes training-ready token blocks, once each, in an order all trainers agree on.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a deliberate error is one line (`main`); any other needs its traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    flag = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True, callback=_version)

    @app.callback()  # with it, a command line of one command still wants that command's name
    def options(version: bool = flag) -> None:  # noqa: FBT001 - typer reads a flag so
        pass

    modules = {COMMANDS[command]} if command in COMMANDS else {*COMMANDS.values()}
    loaded = {import_module(f".{module}", __package__).__name__ for module in modules}
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    for words, declared in DECLARED.items():
        if declared.called.__module__ in loaded:
            group, _, name = words.rpartition(" ")
            (groups[group] if group else app).command(name, epilog=declared.epilog)(declared.called)
    for name, typer_group in groups.items():
        if typer_group.registered_commands:
            app.add_typer(typer_group, name=name)
    names = list(COMMANDS)
    app.registered_commands.sort(key=lambda one: names.index(str(one.name)))
    app.registered_groups.sort(key=lambda one: names.index(str(one.name)))
    fold_settings(app)
    return app


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        print(__version__)  # noqa: T201 - `output.show` needs typer
        sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command of ``arguments`` (of the process without them) and exit with its code.

    A process of its own ends after its exit handlers, without Python's finalization: that unwinds threads which run
    native code, and a C++ library in one of them aborts the process.
    """
    code = 1  # of an unexpected error, whose traceback Python prints
    if arguments is None and not (os.isatty(1) and os.isatty(2)):
        os.environ[PLAIN_HELP] = "1"
    try:
        code = _exit_code_of(sys.argv[1:] if arguments is None else arguments)
    finally:
        if arguments is None:
            import signal  # noqa: PLC0415 - loaded by now

            signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit handlers would show a traceback of KeyboardInterrupt
            atexit.register(_leave, code)
    sys.exit(code)


def _exit_code_of(given: Sequence[str]) -> int:
    os.environ.setdefault(*BLAS_THREADS)
    try:  # all imports are in here, so that Ctrl-C meanwhile is no traceback
        from tokenmill.errors import InputError, TokenMillError  # noqa: PLC0415
        from tokenmill.extras import missing_extra  # noqa: PLC0415

        from ..processes import collect_seldom  # noqa: PLC0415
        from ..terminal import guard_streams  # noqa: PLC0415

        guard_streams()
        collect_seldom()
        create_cli(next(iter(given), None))(given, prog_name="tokenmill")
    except KeyboardInterrupt:  # first: the names below may not be there yet
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else end.code is not None
    except TokenMillError as error:
        _say(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        hint = missing_extra(error.name)
        if hint is None:
            raise
        _say(hint)
        return InputError.exit_code
    except OSError as error:  # of a path that a person gave, and that no place knew better
        if error.filename is None:
            raise
        from ..terminal import escaped  # noqa: PLC0415

        _say(
            f"{escaped(str(error.filename))} cannot be used ({error.strerror}): check that the path is right, of the "
            "right kind, and that this user may read or write there"
        )
        return InputError.exit_code
    return 0


def _leave(code: int) -> None:
    # Registered last, so it runs first, when all threads but daemons have ended; it runs the other exit handlers.
    atexit.unregister(_leave)
    atexit._run_exitfuncs()  # noqa: SLF001 - the only way to run them
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or its reader is gone: `guard_streams` has said so
            stream.flush()
    os._exit(code)


def _say(message: str) -> None:
    from ..terminal import escaped_lines  # noqa: PLC0415

    # What has several lines quotes a log; none of them must look like a message of ours.
    lines = escaped_lines(message).replace("\n", "\n  ")
    print(f"tokenmill: {lines}", file=sys.stderr, flush=True)  # noqa: T201 - `output.say` needs typer
