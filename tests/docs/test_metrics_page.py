"""The page about metrics says what the code does."""

from pathlib import Path

from docs.generators.metrics_page import described, page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
CLOSED = {
    "worker",
    "topic",
    "partition",
    "stream",
    "split",
    "setting",
    "sink",
    "reason",
    "kind",
    "stage",
    "state",
    "engine",
}
CLOSED |= {"step", "result"}  # of the recipe, and three words


def test_the_page_is_made_from_the_code() -> None:
    """``make docs`` would change nothing."""
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_metric_is_described_once_and_has_closed_labels() -> None:
    """Names begin with ours, or are every process's; labels are of the sets that the page names."""
    metrics = described()
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names) > 30
    assert all(name.startswith(("tokenmill_", "process_")) for name in names)
    assert all(metric.help.endswith(".") for metric in metrics)
    labels = {label for metric in metrics if metric.name != "tokenmill_build_info" for label in metric.labels}
    assert labels == CLOSED
