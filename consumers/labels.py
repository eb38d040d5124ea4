"""Labels of documents: a carried field of theirs, as numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError
from tokenmill.samples import Numbers
from tokenmill.store import StreamInfo

from . import arguments

_NONE: Final = -1
"""The number of a label that is missing or unknown."""
_INT64: Final = range(1 << 63)


class Labels:
    """Reads labels, and remembers the first document that has none."""

    def __init__(self, field: str, names: tuple[str | int, ...] | None) -> None:
        self.field = field
        self.names = names
        self._numbers = None if names is None else {_key(name): number for number, name in enumerate(names)}
        self._first = ""
        """What is wrong with the first document whose label is missing or unknown."""

    @classmethod
    def of(cls, field: Any, names: Any) -> Self | None:
        """Return what reads the labels that are asked for; None: none are.

        Raises:
            InputError: the field is no name, or the names are not several different ones.

        """
        if field is None:
            if names is not None:
                raise InputError(f"label_names is {arguments.shown(names)}, without label_field: give both, or None")
            return None
        if not isinstance(field, str) or not field:
            raise InputError(f"label_field is {arguments.shown(field)}: give the name of a carried field, or None")
        if names is None:
            return cls(field, None)
        given = list(names) if isinstance(names, Sequence) and not isinstance(names, str | bytes | range) else []
        if not given or not all(type(name) in {str, int} for name in given) or len(set(given)) != len(given):
            raise InputError(
                f"label_names is {arguments.shown(names)}: give a list of different texts or whole numbers, in the "
                "order of their numbers, such as ['negative', 'positive'], or None"
            )
        return cls(field, tuple(given))

    def require_field(self, info: StreamInfo) -> None:
        """Raise InputError where the stream does not carry the field."""
        carried = info.values.get("genesis", {}).get("recipe", {}).get("metadata_fields")
        if carried is not None and self.field not in carried:
            others = f"give one of {', '.join(carried)}, or " if carried else ""
            raise InputError(
                f"label_field is {self.field!r}, which {info.name} does not carry: {others}mill a stream with it among "
                "its metadata_fields"
            )

    def numbers(self, partition: int, offsets: Numbers, metas: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.int64]:
        """Return the numbers of documents' labels, -1 where one is missing or unknown."""
        values = [meta.get("fields", {}).get(self.field) for meta in metas]
        found = np.fromiter(map(self._number, values), np.int64, len(values))
        if not self._first and len(bad := np.flatnonzero(found < 0)):
            at = int(bad[0])
            value = values[at]
            what = "has none" if value is None else f"is {arguments.shown(value)}"
            identity = metas[at].get("id")
            who = "" if identity is None else f" (id {arguments.shown(identity)})"
            self._first = f"the one at offset {int(offsets[at])} of partition {partition}{who} {what}"
        return found

    def refusal(self, count: int) -> str:
        """Return what to say where documents without a usable label are refused."""
        return (
            f"{count} documents have no label in {self.field!r} that is {self._wanted()}: {self._first}. Give "
            "on_missing_label='drop' to leave them out, or label_names that has all"
        )

    def dropped(self, count: int) -> str:
        """Return what to say where they are left out."""
        return f"leaving out {count} documents whose {self.field!r} is not {self._wanted()}: {self._first}"

    def _wanted(self) -> str:
        return "a whole number, 0 or more" if self.names is None else f"one of {arguments.shown(list(self.names))}"

    def _number(self, value: Any) -> int:
        if self._numbers is not None:
            return self._numbers.get(_key(value), _NONE)
        if isinstance(value, bool):
            return int(value)
        return value if isinstance(value, int) and value in _INT64 else _NONE


def _key(value: Any) -> tuple[type, Any]:
    """Return what keeps true apart from 1 and 1.0."""
    return type(value), value
