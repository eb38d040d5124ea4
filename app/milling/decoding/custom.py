"""A decoder of the user's own on raw bytes, named by its import path: ``decode = "module:function"``.

The function takes the record's value (`bytes`) and returns a `Document`, or a reason or None, which dead-letters the
record; `milling.user_function` has the rules for it::

    def latin_1(value: bytes) -> Document | str:
        return Document(value.decode("latin-1")) if value else "nothing_there"


    latin_1.version = "1"
    latin_1.reasons = ("nothing_there",)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.documents import Document
from tokenmill.errors import RecordError

from ..user_function import UserFunction
from .protocol import Decoder


@dataclass(frozen=True, slots=True)
class FunctionDecoder(Decoder):
    """Calls a user's function and lets only documents and known reasons out of it."""

    function: UserFunction

    def describe(self) -> tuple[Mapping[str, Any], ...]:
        """Return the import path and the version that the function's author states."""
        return ({"name": "decode", **self.function.describe()},)

    def __call__(self, value: bytes) -> Document:
        """Return the function's document.

        Raises RecordError: the function's reason, `milling.user_function.REJECTED` for one that it does not
        declare and for None, `milling.user_function.FUNCTION_FAILED`, or a part of the document is over its limit.
        """
        answer = self.function(value)
        if isinstance(answer, str):
            raise RecordError(answer, f"{self.function.path} (decode) returned this reason, or none that it declares")
        return answer
