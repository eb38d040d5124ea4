"""Tables: rows in columns where the terminal is wide enough, else a paragraph for each row. Nothing is ever cut."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len

from .terminal import escaped

GAP: Final = 2
"""Cells between two columns, and before the lines of a paragraph."""
LEAST_WORDS: Final = 24
"""Cells of a column of sentences, which are broken between words: in fewer they are hard to read."""
_NUMBER: Final = re.compile(r"[-?]|-?[\d,.]+( ?%)?")
"""What stands at the right of its column."""


class ShownTable:
    """Rows of values, each under the name of its column: integers with commas, and None as nothing."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, words: bool = False) -> None:
        """Take the rows; ``words``: the last column has sentences, which may be broken between words."""
        self.columns, self.words = columns, words
        self.rows = [[_cell(value) for value in row] for row in rows]

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table for so many cells in a line; None: for a file, where lines are as long as they are."""
        shown = [list(self.columns), *self.rows] if any(self.columns) else self.rows
        if not shown:
            return []
        widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
        room = None if width is None else width - sum(widths[:-1]) - GAP * (len(widths) - 1)
        if width is not None and room is not None and room < min(widths[-1], LEAST_WORDS if self.words else widths[-1]):
            return [line for row in self.rows for line in self._paragraph(row, width)]
        right = [all(_NUMBER.fullmatch(row[n]) for row in self.rows if row[n]) for n in range(len(self.columns))]
        return [line for row in shown for line in _in_columns(row, widths, right, room if self.words else None)]

    def _paragraph(self, row: Sequence[str], width: int) -> Iterator[str]:
        yield row[0]
        named = [f"{name} {value}".strip() for name, value in zip(self.columns[1:], row[1:], strict=True) if value]
        sentences = named.pop().split(" ") if self.words and row[-1] else []
        for parts, between in ((named, "; "), (sentences, " ")):
            yield from (f"{'':{GAP}}{line}" for line in flowed(parts, between, width - GAP))


def pairs(values: Mapping[str, Any]) -> ShownTable:
    """Return names and values as a table of two columns without a heading."""
    rows = ((name.replace("_", " "), "-" if value is None else str(value)) for name, value in values.items())
    return ShownTable(("", ""), rows, words=True)


def flowed(parts: Iterable[str], between: str, width: int) -> Iterator[str]:
    """Yield lines of whole parts, as many in each as fit; a part that is wider than a line has one to itself."""
    line = ""
    for part in parts:
        longer = f"{line}{between}{part}" if line else part
        if line and cell_len(longer) > width:
            yield f"{line}{between}".rstrip()
            longer = part
        line = longer
    if line:
        yield line


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else escaped(str(value))


def _in_columns(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], room: int | None) -> Iterator[str]:
    before = "".join(_padded(*cell) + " " * GAP for cell in zip(row[:-1], widths[:-1], right[:-1], strict=True))
    last = _padded(row[-1], widths[-1], right[-1])
    lines = [last] if room is None else [*flowed(row[-1].split(" "), " ", room)]
    for line in lines or [""]:
        yield f"{before}{line}".rstrip()
        before = " " * cell_len(before)


def _padded(value: str, width: int, right: bool) -> str:  # noqa: FBT001 - which side
    space = " " * (width - cell_len(value))
    return space + value if right else value + space
