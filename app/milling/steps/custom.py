"""The step ``function``: a user's own transform or filter of documents, named by its import path.

The function takes a `Document` and returns one, or a reason or None to filter it out; `milling.user_function`
has the rules for it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from tokenmill.documents import Document

from ..user_function import UserFunction
from .protocol import EachAlone, Rejected


@dataclass(frozen=True, slots=True)
class CustomStep(EachAlone):
    """Calls a user's function and lets only documents and known reasons out of it."""

    name: ClassVar[str] = "function"

    function: UserFunction

    def describe(self) -> dict[str, Any]:
        """Return the import path and the version that the function's author states."""
        return {"name": self.name, **self.function.describe()}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the function's answer.

        Raises RecordError: `milling.user_function.FUNCTION_FAILED`, or a part of the new document is over its limit.
        """
        answer = self.function(document)
        return Rejected(answer) if isinstance(answer, str) else answer
