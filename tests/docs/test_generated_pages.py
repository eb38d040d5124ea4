"""The pages that ``make docs`` writes say what the code says, of all that there is."""

import re
import tomllib
from collections.abc import Callable
from typing import Final

import pytest

import tokenmill.consumers
from docs.generators import licenses_page, metrics_page, python_page, settings_page, steps_page
from docs.generators.site import ROOT
from tokenmill.app.milling.steps.pipeline import STEPS, canonical_entries
from tokenmill.parameters import parameters_of

PAGES: Final[dict[str, Callable[[], str]]] = {
    "licenses": licenses_page.page,
    "metrics": metrics_page.page,
    "python": python_page.page,
    "settings": settings_page.page,
    "steps": steps_page.page,
}
LABELS: Final = {
    *("worker", "topic", "partition", "stream", "split", "setting", "sink"),
    *("reason", "kind", "stage", "state", "engine", "step", "result"),
}
"""Of metrics: the closed sets that the page names."""


def written(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert written(name) == PAGES[name](), "run `make docs`"


def test_every_metric_is_described_once_and_has_closed_labels() -> None:
    metrics = metrics_page.described()
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names) > 30
    assert all(name.startswith(("tokenmill_", "process_")) for name in names)
    assert all(metric.help.endswith(".") for metric in metrics)
    labels = {label for metric in metrics if metric.name != "tokenmill_build_info" for label in metric.labels}
    assert labels == LABELS


def test_every_name_of_the_training_side_is_there_once() -> None:
    groups = python_page.GROUPS.values()
    named = [name for _, module, names in groups for name in names if module is tokenmill.consumers]
    assert sorted(named) == sorted(tokenmill.consumers.__all__)
    assert set(named) < set(re.findall(r"^### (\w+)$", written("python"), re.MULTILINE))


def test_methods_of_a_base_are_told_once() -> None:
    """With all arguments, where they come first; later, where that is."""
    text = written("python")
    assert text.count("- `state_after(step: int) -> dict[str, Any]`:") == 1
    assert "As in [Batches](#batches): `behind`, `close`, `decode`," in text
    assert "    on_damage: OnDamage = 'refuse',\n" in text


def test_every_step_and_parameter_is_described() -> None:
    for name, one in STEPS.items():
        assert f"\n### {name}\n" in written("steps")
        assert (one.__doc__ or "").strip()
        for parameter in parameters_of(one):
            assert parameter.description.endswith("."), (name, parameter.name)


def test_the_examples_of_steps_are_steps() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", written("steps"), re.MULTILINE | re.DOTALL)
    assert [entry["name"] for entry in canonical_entries(tomllib.loads(block)["steps"])] == ["gopher_quality", "regex"]
