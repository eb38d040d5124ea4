"""Funnel and lengths as pictures: bars of characters for a terminal, and a PNG by matplotlib."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tokenmill.errors import InputError
from tokenmill.wire.totals import LANGUAGE

from .retention import Retention

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR: Final = 40
"""Cells of the longest bar in a terminal: with labels and numbers, a line fits 80."""
LABEL: Final = 26
"""Cells of a label; a longer one moves its bar."""
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
DPI: Final = 150
"""Dots an inch of the PNG: sharp in a paper's column."""
NOT_CARRIED: Final = str(None)
"""What figures call the language of documents that do not carry it."""

Bars: TypeAlias = Sequence[tuple[str, int]]


def funnel_bars(retention: Retention) -> Bars:
    """Return a label and a number of documents for what came, for each reason, and for what is kept."""
    dropped = [(row.reason, row.documents) for row in retention.funnel()]
    return [("documents", retention.documents), *dropped, ("kept", retention.totals.kept)]


def length_bars(lengths: Counter[int]) -> Bars:
    """Return each power of two from the shortest to the longest document, and how many documents it has."""
    if not +lengths:
        return []
    return [(_power(key), lengths[key]) for key in range(min(+lengths), max(+lengths) + 1)]


def terminal_bars(title: str, bars: Bars) -> list[str]:
    """Return the bars as lines of text, each with its label and number."""
    most = max((number for _, number in bars), default=0)
    width = max((len(f"{number:,}") for _, number in bars), default=0)
    return [title, *(f"  {label:<{LABEL}} {number:>{width},} {_bar(number, most)}".rstrip() for label, number in bars)]


def terminal_plot(retention: Retention) -> list[str]:
    """Return funnel and histograms as lines of text; a histogram only where lengths are counted."""
    lines = terminal_bars("documents", funnel_bars(retention))
    for title, lengths in _histograms(retention).items():
        lines += terminal_bars(title, length_bars(lengths))
    return lines


def write_png(path: Path, retentions: Mapping[str, Retention]) -> None:
    """Write a PNG with a row for each name: its funnel, and the lengths of what is kept where they are counted.

    Raises InputError where the file cannot be written; and ModuleNotFoundError where matplotlib is missing, which the
    extra ``bench`` brings.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(
        len(retentions), 2, figsize=(12, 4 * len(retentions)), squeeze=False, layout="constrained"
    )
    for row, (name, retention) in zip(axes, retentions.items(), strict=True):
        _draw_bars(row[0], f"{name}: {retention.lines()[0].removeprefix('Data retention: ')}", funnel_bars(retention))
        lengths = length_bars(retention.totals.figures.token_lengths)
        if lengths:
            _draw_bars(row[1], "tokens a document", lengths)
        else:
            row[1].set_axis_off()
    try:
        figure.savefig(path, dpi=DPI, format="png")
    except OSError as error:
        raise InputError(f"--plot {path} cannot be written ({error.strerror}): name a file in a directory") from error
    finally:
        plt.close(figure)


def _draw_bars(axes: "Axes", title: str, bars: Bars) -> None:
    labels, numbers = [label for label, _ in bars], [number for _, number in bars]
    drawn = axes.barh(range(len(bars)), numbers, color="#4c72b0")
    axes.bar_label(drawn, [f"{number:,}" for number in numbers], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(title, fontsize=10)


def _histograms(retention: Retention) -> dict[str, Counter[int]]:
    figures = retention.totals.figures
    found = {"tokens a document": figures.token_lengths, "bytes a document": figures.text_lengths}
    return {title: lengths for title, lengths in found.items() if +lengths}


def _power(key: int) -> str:
    low, high = 1 << key, (1 << key + 1) - 1
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bar(number: int, most: int) -> str:
    eighths = round(number * BAR * 8 / most) if most else 0
    full, rest = divmod(max(eighths, int(number > 0)), 8)
    return "█" * full + EIGHTHS[rest].strip()


def languages_line(languages: Iterable[tuple[str, int]]) -> str:
    """Return languages with their documents, the most frequent first; where no document says one, how it would."""
    found = sorted(languages, key=lambda one: (-one[1], one[0]))
    if [name for name, _ in found] == [NOT_CARRIED]:
        return f'not carried; documents say theirs with metadata_fields = ["{LANGUAGE}"]'
    return ", ".join(f"{language} {number:,}" for language, number in found)
