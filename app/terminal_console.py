"""Rich's console, for whatever comes from records and names: it takes nothing in them for an instruction.

Rich would read `[bold]`, `[link=…]` and `:smile:` in any text that it is given, and passes escape sequences on.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment

from .terminal import escaped_lines

PlainColumn: Final = partial(TextColumn, markup=False)
"""A column of a progress bar whose text is shown as it is."""


class EscapingConsole(Console):
    """A console on which texts are shown as they are, and control characters in them escaped."""

    def __init__(self, *, stderr: bool = False) -> None:
        """Write to standard output, or standard error."""
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what a renderable is made of; only the console's own control segments hold control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped_lines(segment.text))
