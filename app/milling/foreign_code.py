"""Code of others: native libraries, and a user's own function.

A library in Rust that panics raises ``pyo3_runtime.PanicException``, a `BaseException` as `KeyboardInterrupt` is: it
passes every ``except Exception``. A worker would end over one record, and so would each that is started after it. So
whatever calls native code calls it within `NativeCode`, and the handlers of errors see a panic as they see others.

A user's own function is named by its import path: the step ``function``, or a decoder (``decode``). It returns a
`Document`, or a reason (a string) or None where there is none; docs/own_functions.md has an example. It must be pure,
because every worker, restart and verification has to get the same answer. With ``version`` its author promises that: it
goes into the fingerprint, and a change of any answer needs a new one. ``reasons`` are all the reasons that it may give;
any other, None included, is counted as ``rejected``.

Modules of a user's own are looked for in the working directory here alone. Commands run in folders of data, which
somebody else may have filled: a file ``http.py`` there must never be imported in place of the library's, nor one whose
name a library merely tries (``uvloop``). So the working directory is on no module path. Once a setting or ``--map``
names a function there, its module is found in it, and what that module's own code imports, but last: what Python finds
elsewhere is never taken from there.
"""

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from inspect import iscoroutinefunction
from math import isfinite
from operator import attrgetter
from types import FrameType, ModuleType, TracebackType
from typing import Any, Final, Literal, TypeGuard

from tokenmill.documents import INTEGERS, Document, Limits
from tokenmill.errors import PanicError, RecordError, SettingsError
from tokenmill.recipe import Recipe

_SHOWN_CHARACTERS: Final = 500
"""Of what an error says, which may quote the text: it goes into log lines and headers."""


class NativeCode:
    """A context of any number of threads: a panic of native code, named so in messages, is raised as `PanicError`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Do nothing yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_panic(error):
            raise PanicError(f"{self._name} panicked ({shown_error(error)})") from error


def is_panic(error: BaseException) -> bool:
    """Whether native code panicked; each library has a class of its own for that, all of one name."""
    return any((kind.__module__, kind.__name__) == ("pyo3_runtime", "PanicException") for kind in type(error).__mro__)


def shown_error(error: BaseException) -> str:
    """Return the error's type and message, short, in ASCII, even if its ``str()`` fails."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.encode("ascii", "backslashreplace").decode()[:_SHOWN_CHARACTERS]


log = logging.getLogger(__name__)


class OwnModuleFinder(MetaPathFinder):
    """Finds modules in one folder: those that a setting named, and those that modules of the folder import."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.named: set[str] = set()
        """Modules and packages without a dot in their names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return how a module is loaded; None where it is not there, or where the importing code may not use it.

        Submodules are their package's (``path``), which Python looks in without asking here.
        """
        if path is not None or not (fullname in self.named or self._is_in_here(_importing_file())):
            return None
        return PathFinder.find_spec(fullname, [self.folder], target)

    def _is_in_here(self, file: str) -> bool:
        return os.path.isabs(file) and os.path.commonpath([self.folder, file]) == self.folder  # noqa: PTH117


def import_own(path: str) -> Any:
    """Return what ``path`` (``module:function``) names, looked for in the working directory last.

    The log says which file it is from: a settings file may name a function, and so decide what code runs. Raises
    ValueError where the path is not written like that; AttributeError, with the module's file, where that has nothing
    of the name; and whatever the module raises when it is imported.
    """
    name, _, attribute = path.partition(":")
    if not (name and attribute):
        raise ValueError('write "module:function"')
    _let_find(name.partition(".")[0])
    module = import_module(name)
    place = getattr(module, "__file__", None) or "the interpreter"
    try:
        found = attrgetter(attribute)(module)
    except AttributeError as error:
        raise AttributeError(f"{error}; the module is that of {place}") from error
    log.info("%s is code of %s", path, place)
    return found


def _let_find(name: str) -> None:
    """Let a module or package be found in the working directory."""
    try:
        here = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    except OSError:  # it was removed meanwhile, and holds no module
        return
    known = (finder for finder in sys.meta_path if isinstance(finder, OwnModuleFinder) and finder.folder == here)
    finder = next(known, None)
    if finder is None:
        finder = OwnModuleFinder(here)
        sys.meta_path.append(finder)
    finder.named.add(name)


def _importing_file() -> str:
    """Return the file of the code whose import is under way; empty where that is unknown."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to find the importing code
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        is_machinery = name == "importlib" or name.startswith(("importlib.", "_frozen_importlib"))
        if frame.f_globals is not globals() and not is_machinery:
            return str(frame.f_globals.get("__file__") or "")
        frame = frame.f_back
    return ""


FUNCTION_FAILED: Final = "function_failed"
"""Dead-letter reason: the function raised, or returned what is no document."""
REJECTED: Final = "rejected"
"""Reason of a function that returns none of its ``reasons``."""
MAX_REASONS: Final = 64
"""Reasons are counted in the totals of every message and in metrics, so there are few."""

_REASON: Final = re.compile(r"[a-z0-9_]{1,32}")
_CALLED: Final = NativeCode("native code that the function calls")


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function that was imported and checked; only documents and known reasons get out of it."""

    path: str
    version: str
    function: Callable[[Any], object]
    reasons: frozenset[str]
    metadata_fields: tuple[str, ...]
    """The fields that the stream carries; others that the function returns are dropped."""
    limits: Limits

    def describe(self) -> dict[str, Any]:
        """Return the import path and the version that the function's author states."""
        return {"path": self.path, "version": self.version}

    def __call__(self, argument: object) -> Document | str:
        """Return the document, a known reason or `REJECTED`. Raises RecordError: `FUNCTION_FAILED`, or over a limit."""
        try:
            with _CALLED:
                answer = self.function(argument)
        except MemoryError:
            raise  # says nothing about the document: the worker ends, and another one tries again
        except Exception as error:  # whatever a user's function raises belongs to this record alone
            raise RecordError(FUNCTION_FAILED, shown_error(error)) from error
        if answer is None or isinstance(answer, str):
            return answer if answer in self.reasons else REJECTED
        return self._checked(answer)

    def _checked(self, answer: object) -> Document:
        if not isinstance(answer, Document):
            raise RecordError(
                FUNCTION_FAILED, f"it returned a {type(answer).__name__}, not a Document, a reason or None"
            )
        if not _is_text(answer.text):
            raise RecordError(FUNCTION_FAILED, "the text that it returned is no str, or has lone surrogates")
        if not (answer.id is None or _is_id(answer.id)):
            raise RecordError(FUNCTION_FAILED, "the id that it returned is no non-empty str, 64-bit int or None")
        if not isinstance(answer.fields, Mapping):
            raise RecordError(FUNCTION_FAILED, "the fields that it returned are no mapping")
        fields = {name: answer.fields[name] for name in self.metadata_fields if name in answer.fields}
        for name, value in fields.items():
            if not _is_scalar(value):
                raise RecordError(FUNCTION_FAILED, f"the field {name!r} that it returned is no JSON scalar")
        self.limits.check_text(answer.text)
        self.limits.check_id(answer.id)
        self.limits.check_fields(fields)
        return Document(answer.text, answer.id, fields)


def open_user_function(setting: Literal["function", "decode"], recipe: Recipe) -> UserFunction:
    """Import the function (``module:function``) that a setting of the recipe names.

    Raises SettingsError where it cannot be imported or called, or its author does not state its version.
    """
    path = str(getattr(recipe, setting))
    said = f'{setting} = "{path}"'
    function = _imported(said, path)
    version = getattr(function, "version", None)
    if not callable(function) or iscoroutinefunction(function):
        takes = "bytes" if setting == "decode" else "a Document"
        raise SettingsError(f"{said} is no plain function: name one that takes {takes} and returns a Document")
    if not (isinstance(version, str) and version):
        raise SettingsError(
            f'{said} states no version: add `{path.rpartition(":")[2]}.version = "1"` below it, '
            "and raise it whenever an answer changes"
        )
    reasons = getattr(function, "reasons", ())
    if not (isinstance(reasons, (tuple, list, set, frozenset)) and len(reasons) <= MAX_REASONS) or not all(
        isinstance(reason, str) and _REASON.fullmatch(reason) for reason in reasons
    ):
        raise SettingsError(
            f"{said}: its reasons must be a tuple of at most {MAX_REASONS} strings, each of 1 to 32 of a-z, 0-9 and _"
        )
    return UserFunction(path, version, function, frozenset(reasons), recipe.metadata_fields, Limits.of(recipe))


def _imported(said: str, path: str) -> Any:
    try:
        with _CALLED:
            return import_own(path)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not path.partition(":")[2]:
            raise SettingsError(f"{said} is no import path: {error}") from error
        raise SettingsError(
            f"{said} cannot be imported ({shown_error(error)}): is its folder on PYTHONPATH, or the working directory, "
            "where modules are looked for last, and does the module import by itself?"
        ) from error


def _is_text(value: object) -> TypeGuard[str]:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_id(value: object) -> bool:
    if type(value) is int:
        return value in INTEGERS
    return value != "" and _is_text(value)


def _is_scalar(value: object) -> bool:
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) is bool or value == "" or _is_text(value) or _is_id(value)
