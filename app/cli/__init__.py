"""The command line, ``tokenmill``. A new command is a function beside this one, and a line in `COMMANDS`.

Data goes to standard output, messages to standard error. The exit code says what kind of thing went wrong
(`tokenmill.errors`); 2 also means wrong usage, 130 for Ctrl-C.
"""

import ast
import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from tokenmill import __version__

if TYPE_CHECKING:  # typer comes with an extra, and `main` says so where it is missing
    import typer

BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "1")
"""Said to numpy before it is loaded, unless the environment says it. Nothing here multiplies matrices, and in each
process that starts a thread for every further core would wait for such work, busily, for a tenth of a second. Whose own
filter or transform does, sets the variable."""
INTERRUPTED: Final = 130
"""What shells make of a process that SIGINT ended: 128 + 2."""

COMMANDS: Final = {
    command: module
    for module, commands in (
        ("local_kafka", "demo up"),
        ("produce", "produce flush"),
        ("verify", "pack"),
        ("serving", "serve"),
        ("workers", "mill segment sequencer"),
        ("serving", "mirror"),
        ("trying", "try"),
        ("settings_and_topics", "dedup"),
        ("verify", "verify"),
        ("status", "status ledger"),
        ("dead_letters", "eras close"),
        ("inspect", "inspect tail trace"),
        ("dead_letters", "dead-letters rejects"),
        ("stores", "repair retire adopt upload export describe"),
        ("dead_letters", "skip ignore"),
        ("settings_and_topics", "topics"),
        ("trying", "train-tokenizer tokenizer"),
        ("local_kafka", "broker"),
        ("settings_and_topics", "steps config"),
        ("", "version"),
    )
    for command in commands.split()
}
"""Each command and its module, in the order in which help lists them; `version` is here."""
GROUPS: Final = {
    "inspect": "Look at a stream, a segment, a message, or one block's records.",
    "dead-letters": "What could not become a document: list, count, show, resend.",
    "topics": "The topics that the settings need: create, check.",
    "broker": "A local Kafka broker: start, stop, status.",
    "steps": "Filters and transforms of documents: what `steps` may name.",
    "dedup": "Documents that were seen before: what `dedup` finds, what it costs, what it has found.",
}


def create_cli(command: str | None = None) -> "typer.Typer":
    """Return the command line with all commands, or with those of the module of a ``command``, so that it starts soon.

    Where the first argument is none of them, as ``--help``, the commands are listed, and cannot be called.
    """
    import typer  # noqa: PLC0415 - as above

    app = typer.Typer(
        name="tokenmill",
        help="Raw text in Kafka becomes training-ready token blocks, once each, in an order all trainers agree on.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # a deliberate error is one line (`main`); any other needs its traceback
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    flag = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version)

    @app.callback()  # with it, a command line of one command still wants that command's name
    def options(version: bool = flag) -> None:  # noqa: FBT001 - typer reads a flag so
        pass

    app.command("version")(_version)
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    module = COMMANDS.get(command, "") if command is not None else None
    for words, text, epilog, called in _listed() if module == "" else _loaded(module):
        group, _, name = words.rpartition(" ")
        (groups[group] if group else app).command(name, help=text, epilog=epilog)(called)
    for name, typer_group in groups.items():
        if typer_group.registered_commands:
            app.add_typer(typer_group, name=name)
    names = list(COMMANDS)
    app.registered_commands.sort(key=lambda one: names.index(str(one.name)))
    app.registered_groups.sort(key=lambda one: names.index(str(one.name)))
    if module != "":
        from .options import fold_settings  # noqa: PLC0415 - it needs the settings, which take half a second

        fold_settings(app)
    return app


Listed: TypeAlias = Iterator[tuple[str, str | None, str | None, Callable[..., Any]]]
"""Commands: the words that are typed, the help where it is not the function's, its end, and the function."""


def _loaded(module: str | None) -> Listed:
    from .options import DECLARED  # noqa: PLC0415

    modules = COMMANDS.values() if module is None else [module]
    loaded = {import_module(f".{one}", __package__).__name__ for one in modules if one}
    for words, (called, epilog) in DECLARED.items():
        if called.__module__ in loaded:
            yield words, None, epilog, called


def _listed() -> Listed:
    """Yield those of all modules, from their sources: to load these takes a second. The functions do nothing."""
    for module in filter(None, dict.fromkeys(COMMANDS.values())):
        source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "command":
                        yield ast.literal_eval(call.args[0]), ast.get_docstring(node), None, lambda: None


def _version() -> None:
    """Print the version."""
    print(__version__)  # noqa: T201 - `output.show` needs typer


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        _version()
        sys.exit(0)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command of ``arguments`` (of the process without them) and exit with its code.

    A process of its own ends after its exit handlers: Python's finalization unwinds threads that run native code, and a
    C++ library in one of them aborts the process.
    """
    code = 1  # of an unexpected error, whose traceback Python prints
    if arguments is None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as a shell's ``&`` does
            signal.signal(signal.SIGINT, _end_at_once)
            sys.unraisablehook = _raise_again
        if not (os.isatty(1) and os.isatty(2)):
            os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # else FORCE_COLOR, as notebooks set it, styles help
    try:
        code = _exit_code_of(sys.argv[1:] if arguments is None else arguments, own=arguments is None)
    finally:
        if arguments is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit handlers would show a traceback of KeyboardInterrupt
            atexit.register(_leave, code)
    sys.exit(code)


def _exit_code_of(given: Sequence[str], *, own: bool = False) -> int:
    os.environ.setdefault(*BLAS_THREADS)
    try:
        from tokenmill.errors import InputError, TokenMillError, missing_extra  # noqa: PLC0415

        from ..terminal import guard_streams  # noqa: PLC0415

        guard_streams()
        words = [word for word in given if word != "--"] or [""]
        if COMMANDS.get(words[0]):
            from ..processes import collect_seldom  # noqa: PLC0415

            collect_seldom()
        cli = create_cli(None if "_TOKENMILL_COMPLETE" in os.environ else words[0])  # a shell completes a word
        if signal.getsignal(signal.SIGINT) is _end_at_once:  # from here on there is something to end in order
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli(given, prog_name="tokenmill")
    except (KeyboardInterrupt, SystemExit) as end:  # first: the names below may not be there yet
        return _told(INTERRUPTED if isinstance(end, KeyboardInterrupt) else end.code, own=own)
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


def _told(code: object, *, own: bool) -> int:
    """Return the exit code of a command that says it itself."""
    if code == INTERRUPTED:  # what it left half made is freed next, and is to say nothing of it
        warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that was not begun
        sys.unraisablehook = (lambda _: None) if own else sys.unraisablehook  # an event loop without its attributes
    if code == 1 and getattr(sys.stdout, "reader_is_gone", False):  # 1 is what typer and Rich make of it
        return 128 + signal.SIGPIPE  # as shells have it; with 1, `verify` would have found a difference
    return code if isinstance(code, int) else code is not None


def _end_at_once(*_: object) -> None:
    """Handle Ctrl-C amid imports, where libraries catch a KeyboardInterrupt, or Python makes another error of it."""
    os._exit(INTERRUPTED)


def _raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Let Ctrl-C come again, from a thread, where Python drops it, as in a finalizer; show any other error."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.05, _press_ctrl_c)  # the finalizer takes microseconds
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(lost)


def _press_ctrl_c() -> None:
    if callable(signal.getsignal(signal.SIGINT)):  # else the command has ended meanwhile
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _leave(code: int) -> None:
    # Registered last, so it runs first, when all threads but daemons have ended; it runs the other exit handlers.
    atexit.unregister(_leave)
    atexit._run_exitfuncs()  # noqa: SLF001 - the only way to run them
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or its reader is gone: `GuardedStream` has said so
            stream.flush()
    os._exit(code)


def _say(message: str) -> None:
    from ..terminal import escaped_lines  # noqa: PLC0415

    # What has several lines quotes a log; none of them must look like a message of ours.
    lines = escaped_lines(message).replace("\n", "\n  ")
    with suppress(OSError):  # where it does not take even that, the exit code has to do
        print(f"tokenmill: {lines}", file=sys.stderr, flush=True)  # noqa: T201 - `output.say` needs typer
