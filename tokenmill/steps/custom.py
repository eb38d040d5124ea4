"""The step ``function``: a user's own transform or filter, named by its import path.

The function takes a `Document` and returns one, or a reason (a string) or None to filter it out::

    def longer_than_its_title(document: Document) -> Document | str:
        title = document.fields.get("title") or ""
        return document if len(document.text) > len(str(title)) else "only_a_title"


    longer_than_its_title.version = "1"
    longer_than_its_title.reasons = ("only_a_title",)

It must be pure: the answer depends on the document alone, because every worker, restart and verification has to get
the same one. ``version`` is its author's word for that: it goes into the fingerprint, and a change of any answer
needs a new one. ``reasons`` are all that it may give; anything else, None included, is counted as ``rejected``.
"""

import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import iscoroutinefunction
from math import isfinite
from operator import attrgetter
from typing import Any, Final, TypeGuard

from tokenmill.document_columns import DocumentColumns
from tokenmill.documents import Document, Limits
from tokenmill.errors import RecordError, SettingsError
from tokenmill.steps.protocol import Rejected

FUNCTION_FAILED: Final = "function_failed"
"""Dead-letter reason: the function raised, or returned what is no document."""
REJECTED: Final = "rejected"
"""Filter reason of a function that names none of its ``reasons``."""

_REASON: Final = re.compile(r"[a-z0-9_]{1,32}")
_MAX_REASONS: Final = 64
"""Reasons are counted in the totals of every message and in metrics, so there are few."""
_SHOWN_CHARACTERS: Final = 500
_INTEGERS: Final = range(-(2**63), 2**64)
"""What JSON parsers of other languages read as an integer, and ours."""


@dataclass(frozen=True, slots=True)
class CustomStep:
    """Calls a user's function and lets only documents and known reasons out of it."""

    path: str
    version: str
    function: Callable[[Document], object]
    reasons: frozenset[str]
    carry: tuple[str, ...]
    """The fields that the stream carries; others that the function returns are dropped."""
    limits: Limits

    @property
    def name(self) -> str:
        """``function``."""
        return "function"

    def describe(self) -> dict[str, Any]:
        """Return the import path and the version that the function's author states."""
        return {"name": self.name, "path": self.path, "version": self.version}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the function's answer.

        Raises:
            RecordError: `FUNCTION_FAILED`, or a part of the new document is over its limit.

        """
        try:
            answer = self.function(document)
        except MemoryError:
            raise  # says nothing about the document: the worker ends, and another one tries again
        except Exception as error:  # whatever a user's function raises belongs to this record alone
            raise RecordError(FUNCTION_FAILED, _shown(error)) from error
        if answer is None or isinstance(answer, str):
            return Rejected(answer if answer in self.reasons else REJECTED)
        return self._checked(answer)

    def touched(self, documents: DocumentColumns) -> Iterable[int]:
        """Return all: nobody knows what the function does."""
        return range(len(documents))

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
        fields = {name: answer.fields[name] for name in self.carry if name in answer.fields}
        for name, value in fields.items():
            if not _is_scalar(value):
                raise RecordError(FUNCTION_FAILED, f"the field {name!r} that it returned is no JSON scalar")
        self.limits.check_text(answer.text)
        self.limits.check_id(answer.id)
        self.limits.check_fields(fields)
        return Document(answer.text, answer.id, fields)


def open_function(path: str, *, carry: Sequence[str], limits: Limits) -> CustomStep:
    """Import the function that ``path`` (``module:function``) names.

    Raises:
        SettingsError: it cannot be imported or called, or its author does not state its version.

    """
    function = _imported(path)
    version = getattr(function, "version", None)
    if not callable(function) or iscoroutinefunction(function):
        raise SettingsError(f'function = "{path}" is no plain function: name one that takes and returns a Document')
    if not (isinstance(version, str) and version):
        raise SettingsError(
            f'function = "{path}" states no version: add `{path.rpartition(":")[2]}.version = "1"` below it, '
            "and raise it whenever an answer changes"
        )
    reasons = _reasons(path, getattr(function, "reasons", ()))
    return CustomStep(path, version, function, reasons, tuple(carry), limits)


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    if not (module and attribute):
        raise SettingsError(f'function = "{path}" is no import path: write "module:function"')
    try:
        return attrgetter(attribute)(import_module(module))
    except Exception as error:
        raise SettingsError(
            f'function = "{path}" cannot be imported ({_shown(error)}): '
            "is its folder on PYTHONPATH, and does the module import by itself?"
        ) from error


def _reasons(path: str, reasons: object) -> frozenset[str]:
    if not (isinstance(reasons, (tuple, list, set, frozenset)) and len(reasons) <= _MAX_REASONS) or not all(
        isinstance(reason, str) and _REASON.fullmatch(reason) for reason in reasons
    ):
        raise SettingsError(
            f'function = "{path}": its reasons must be a tuple of at most {_MAX_REASONS} strings, '
            "each of 1 to 32 of a-z, 0-9 and _"
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
        return value in _INTEGERS
    return value != "" and _is_text(value)


def _is_scalar(value: object) -> bool:
    if value is None or type(value) is bool:
        return True
    if type(value) is float:
        return isfinite(value)
    return value == "" or _is_text(value) or _is_id(value)


def _shown(error: BaseException) -> str:
    """Return the error's type and message, short, in ASCII, even if its ``str()`` fails."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.encode("ascii", "backslashreplace").decode()[:_SHOWN_CHARACTERS]
