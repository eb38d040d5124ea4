"""``python -m benchmarks.shapes``: what the packings of whole documents cost and how full they are (`README.md`)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from benchmarks.padded import DOCUMENTS, measure_padded
from benchmarks.shapes_fit import measure_fit
from benchmarks.workplace import RESULTS, about_this_run, workplace, write_result

DIRECTORY: Final = Path(".tokenmill/shapes")
NAME: Final = "shapes.json"
Section = Callable[[int, float, Path], Mapping[str, Any]]
"""Measures in so many rounds, on a share of the documents, in a directory; returns figures. Those under ``ratios`` are
joined with the other sections'."""


def _measure_padded(rounds: int, share: float, directory: Path) -> Mapping[str, Any]:
    """Return what padded batches cost beside a ``DataLoader`` over datasets."""
    found = measure_padded(directory, rounds=rounds, count=max(round(DOCUMENTS * share), 1000))
    return {"padded": found, "ratios": {"padded_of_dataloader": found["ratio"]}}


SECTIONS: Final[Mapping[str, Section]] = {"fit": measure_fit, "padded": _measure_padded}
"""By the name that ``--only`` takes."""

console = Console(width=140, highlight=False)


def main(
    *,
    rounds: Annotated[int, typer.Option(help="How often speeds are measured.", min=1)] = 5,
    share: Annotated[float, typer.Option(help="Of the documents; less to see that it works.")] = 1.0,
    only: Annotated[str, typer.Option(help="One section; the other figures stay as they are in the file.")] = "",
    directory: Annotated[Path, typer.Option(help="Where files go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where shapes.json goes.")] = RESULTS,
) -> None:
    """Measure each section; print its figures, and write `shapes.json`."""
    if only and only not in SECTIONS:
        raise typer.BadParameter(f"there are {', '.join(SECTIONS)}", param_hint="--only")
    file = output / NAME
    result: dict[str, Any] = json.loads(file.read_text()) if only and file.exists() else {}
    result |= about_this_run()
    with workplace(directory):
        for name, measure in SECTIONS.items():
            if only in ("", name):
                found = dict(measure(rounds, share, directory))
                console.print(found)
                result = {**result, **found, "ratios": {**result.get("ratios", {}), **found.get("ratios", {})}}
    write_result(output, NAME, result)


if __name__ == "__main__":
    typer.run(main)
