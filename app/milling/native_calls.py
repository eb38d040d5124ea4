"""Calls of native code: a panic there becomes an exception like others, so that the handlers of errors see it.

A library in Rust that panics raises ``pyo3_runtime.PanicException``, a `BaseException` as `KeyboardInterrupt` is: it
passes every ``except Exception``. A worker would end over one record, and so would each that is started after it.
Whatever calls native code calls it within `NativeCode`.
"""

import traceback
from types import TracebackType
from typing import Final

from tokenmill.errors import PanicError

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
