"""The picture of where each CPU second goes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.stages import STAGES

mpl.use("Agg")  # no window

COLOURS: Final = {
    "fetch": "#4c78a8",
    "decode": "#9ecae9",
    "tokenize": "#f58518",
    "pack": "#ffbf79",
    "publish": "#54a24b",
    "append": "#b279a2",
    "sync": "#e45756",
    "other": "#bab0ac",
}
SMALLEST_LABEL: Final = 0.035
"""Part of the axis from which on a piece of a bar has room for its number."""


SMALLEST_WAIT: Final = 0.5


class Bar(NamedTuple):
    """One process."""

    label: str
    cpu_s_per_gb: Mapping[str, float]
    """By stage."""
    waiting_s_per_gb: float
    """Wall clock that its threads, all together, spent in sync beyond the CPU seconds there."""


def draw(bars: Mapping[str, Sequence[Bar]], path: Path) -> None:
    """Write the picture, PNG or SVG by the name of ``path``: for each kind of documents, its bars."""
    heights = [len(group) for group in bars.values()]
    figure, axes = plt.subplots(
        len(bars),
        figsize=(11, 1.7 + 0.62 * sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for (name, group), axis in zip(bars.items(), axes[:, 0], strict=True):
        _draw_group(axis, name, group)
    axes[-1, 0].set_xlabel("CPU seconds for each gigabyte of text (less is better)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False)
    figure.suptitle("Where each CPU second goes (GPT-2 vocabulary, one worker)", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_group(axis: Axes, name: str, group: Sequence[Bar]) -> None:
    longest = max(sum(bar.cpu_s_per_gb.values()) for bar in group)
    starts = [0.0] * len(group)
    rows = range(len(group))
    for stage in STAGES:
        lengths = [bar.cpu_s_per_gb.get(stage, 0.0) for bar in group]
        axis.barh(rows, lengths, left=starts, color=COLOURS[stage], label=stage, edgecolor="white", linewidth=0.5)
        for row, length, start in zip(rows, lengths, starts, strict=True):
            if length > SMALLEST_LABEL * longest:
                axis.text(start + length / 2, row, f"{length:.1f}", ha="center", va="center", fontsize=9)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    for row, bar, end in zip(rows, group, starts, strict=True):
        total = f"{end:.1f}"
        if bar.waiting_s_per_gb > SMALLEST_WAIT:
            total += f"   and {bar.waiting_s_per_gb:.0f} s of waiting for the disk"
        axis.text(end + longest * 0.01, row, total, va="center", fontsize=9, fontweight="bold")
    axis.set_yticks(rows, [bar.label for bar in group])
    axis.invert_yaxis()
    axis.set_xlim(0, longest * 1.12)
    axis.set_title(f"documents of {name}", loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
