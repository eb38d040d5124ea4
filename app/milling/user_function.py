"""A user's own function, named by its import path: the step ``function``, or a decoder (``decode``).

It returns a `Document`, or a reason (a string) or None where there is none::

    def longer_than_its_title(document: Document) -> Document | str:
        title = document.fields.get("title") or ""
        return document if len(document.text) > len(str(title)) else "only_a_title"


    longer_than_its_title.version = "1"
    longer_than_its_title.reasons = ("only_a_title",)

It must be pure: the answer depends on the argument alone, because every worker, restart and verification has to get the
same one. With ``version`` its author promises that: it goes into the fingerprint, and a change of any answer needs a
new one. ``reasons`` are all the reasons that it may give; any other, None included, is counted as ``rejected``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any, Final, TypeGuard

from tokenmill.documents import INTEGERS, Document, Limits
from tokenmill.errors import RecordError, SettingsError

from .native_calls import NativeCode, shown_error
from .own_modules import import_own

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
        """Return the document that the function returned, or its reason: one of ``reasons``, or `REJECTED`.

        Raises:
            RecordError: `FUNCTION_FAILED`, or a part of the document is over its limit.

        """
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


def open_user_function(
    setting: str, path: str, *, takes: str, metadata_fields: Sequence[str], limits: Limits
) -> UserFunction:
    """Import the function that ``path`` (``module:function``), the value of ``setting``, names.

    ``takes`` says, in messages, what the function is called with.

    Raises:
        SettingsError: it cannot be imported or called, or its author does not state its version.

    """
    said = f'{setting} = "{path}"'
    function = _imported(said, path)
    version = getattr(function, "version", None)
    if not callable(function) or iscoroutinefunction(function):
        raise SettingsError(f"{said} is no plain function: name one that takes {takes} and returns a Document")
    if not (isinstance(version, str) and version):
        raise SettingsError(
            f'{said} states no version: add `{path.rpartition(":")[2]}.version = "1"` below it, '
            "and raise it whenever an answer changes"
        )
    reasons = _reasons(said, getattr(function, "reasons", ()))
    return UserFunction(path, version, function, reasons, tuple(metadata_fields), limits)


def _imported(said: str, path: str) -> Any:
    try:
        with _CALLED:
            return import_own(path)
    except ValueError as error:
        if path.partition(":")[2]:
            raise SettingsError(_not_imported(said, error)) from error
        raise SettingsError(f"{said} is no import path: {error}") from error
    except MemoryError:
        raise
    except Exception as error:
        raise SettingsError(_not_imported(said, error)) from error


def _not_imported(said: str, error: Exception) -> str:
    return (
        f"{said} cannot be imported ({shown_error(error)}): is its folder on PYTHONPATH, or the working directory, "
        "where modules are looked for last, and does the module import by itself?"
    )


def _reasons(said: str, reasons: object) -> frozenset[str]:
    if not (isinstance(reasons, (tuple, list, set, frozenset)) and len(reasons) <= MAX_REASONS) or not all(
        isinstance(reason, str) and _REASON.fullmatch(reason) for reason in reasons
    ):
        raise SettingsError(
            f"{said}: its reasons must be a tuple of at most {MAX_REASONS} strings, each of 1 to 32 of a-z, 0-9 and _"
        )
    return frozenset(reasons)


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
    if value is None or type(value) is bool:
        return True
    if type(value) is float:
        return isfinite(value)
    return value == "" or _is_text(value) or _is_id(value)
