"""From runs to numbers: medians with their spread, ratios, a table, and JSON."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.field import OURS
from benchmarks.rounds import Run

KEYS: Final = ("text_mb_per_cpu_s", "text_mb_per_s", "documents_per_s", "tokens_per_s", "peak_rss_mb")


class Cell(NamedTuple):
    """All rounds of one race."""

    documents: str
    workers: int
    rounds: Sequence[Mapping[str, Run]]
    """The runs of each round, by contender."""


def cell_json(cell: Cell) -> dict[str, Any]:
    """Return a race's numbers: for each contender, and TokenMill's in proportion to each other one's."""
    names = list(cell.rounds[0])
    return {
        "documents": cell.documents,
        "workers": cell.workers,
        "contenders": {name: _contender(cell, name) for name in names},
        "ratios": {name: {key: _ratio(cell, name, key) for key in KEYS} for name in names if name != OURS},
    }


def _contender(cell: Cell, name: str) -> dict[str, Any]:
    runs = [runs[name] for runs in cell.rounds]
    topic = runs[0].topic
    return {
        **{key: _spread([run.rates[key] for run in runs]) for key in KEYS},
        "cpu_s_per_gb": {role: _spread([run.cpu_s_per_gb[role] for run in runs]) for role in runs[0].cpu_s_per_gb},
        "of": {"documents": topic.documents, "text_bytes": topic.text_bytes, "tokens": topic.tokens},
        "tokens_on_disk": topic.block_tokens,
    }


def _ratio(cell: Cell, name: str, key: str) -> dict[str, float]:
    """Return TokenMill's number divided by another's, round by round, so that a slow minute hits both."""
    return _spread([runs[OURS].rates[key] / runs[name].rates[key] for runs in cell.rounds])


def _spread(numbers: Sequence[float]) -> dict[str, float]:
    return {"median": _short(median(numbers)), "min": _short(min(numbers)), "max": _short(max(numbers))}


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def print_cell(cell: dict[str, Any], console: Console) -> None:
    """Print a race as a table; ± is half the distance between the fastest and the slowest round, in per cent."""
    workers = "one worker" if cell["workers"] == 1 else f"{cell['workers']} workers"
    table = Table(title=f"documents of {cell['documents']}, {workers}", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in ("MB / CPU s", "MB / s", "documents / s", "tokens / s", "peak MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(f"{OURS}, by CPU", justify="right")
    table.add_column("by clock", justify="right")
    for name, numbers in cell["contenders"].items():
        ratios = cell["ratios"].get(name)
        times = [f"{ratios[key]['median']:.2f} times" for key in KEYS[:2]] if ratios else ["", ""]
        table.add_row(name, *(_with_noise(numbers[key]) for key in KEYS), *times)
    console.print(table)


def _with_noise(spread: Mapping[str, float]) -> str:
    middle = spread["median"]
    shown = f"{middle:,.0f}" if middle >= 100 else f"{middle:.1f}"  # noqa: PLR2004 - three digits either way
    return f"{shown} ±{(spread['max'] - spread['min']) / 2 / middle:.0%}"
