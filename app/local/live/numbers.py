"""Numbers that have a known width, however large they are, and parts of a line that never break."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

LONGEST: Final = 9_999_999
"""What is written out in full, with separators: nine characters."""
UNITS: Final = ("k", "M", "G", "T", "P", "E")
"""Powers of a thousand."""


def short(number: float) -> str:
    """Return a number that is not negative in nine characters at most: ``1,234,567``, then ``12.3M``."""
    if number <= LONGEST:
        return f"{number:,.0f}"
    power = 0
    while number >= 999.95 and power < len(UNITS):  # noqa: PLR2004 - from there on, one decimal would round to 1000.0
        number, power = number / 1000, power + 1
    return f"{number:.1f}{UNITS[power - 1]}"


def lines_of(parts: Iterable[str], width: int, separator: str = " · ") -> list[str]:
    """Return lines of ``width`` cells at most, each of as many whole parts as fit; a longer part ends with ``…``."""
    lines: list[str] = []
    for part in parts:
        fitting = cut(part, width)
        if lines and cell_len(lines[-1]) + cell_len(separator) + cell_len(fitting) <= width:
            lines[-1] += separator + fitting
        else:
            lines.append(fitting)
    return lines


def cut(text: str, width: int) -> str:
    """Return a text in ``width`` cells at most; what does not fit is left out behind a ``…``."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def listed(names: Sequence[str], width: int, most: int, thing: str) -> str:
    """Return names, ``most`` of them at most and in ``width`` cells, or else how many there are."""
    text = " ".join(names) or "-"
    return text if len(names) <= most and cell_len(text) <= width else f"{len(names):,} {thing}"
