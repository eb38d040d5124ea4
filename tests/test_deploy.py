"""The dashboard and the alerts ask for what there is."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tokenmill.app.metrics_page import Described, described
from tokenmill.app.settings import Settings

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
DASHBOARD: Final[dict[str, Any]] = json.loads((DEPLOY / "grafana/dashboards/tokenmill.json").read_text())
RULES: Final = (DEPLOY / "alerts.yml").read_text()
BY_PROMETHEUS: Final = {"job", "instance", "service", "le"}
"""Labels that Prometheus adds (deploy/prometheus.yml), and that of buckets."""
NAME: Final = re.compile(r"\b(?:tokenmill|process)_[a-z_]+\b")
SELECTOR: Final = re.compile(r"\b((?:tokenmill|process)_[a-z_]+)\{([^}]*)\}")
GROUPED: Final = re.compile(r"\bby \(([^)]*)\)")


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return every expression of the dashboard, and every rule's."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*asked, *re.findall(r"expr: (.*(?:\n {10}.*)*)", RULES)]


def by_sample_name() -> dict[str, Described]:
    """Return what is exported, by the names that Prometheus knows."""
    return {name: metric for metric in described() for name in metric.sample_names}


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    """A name that no worker exports would be an empty panel, or an alert that never comes."""
    known = by_sample_name()
    names = set(NAME.findall(expression))
    assert names <= known.keys()
    assert names or re.search(r"\bup\{", expression)
    for name, selector in SELECTOR.findall(expression):
        labels = set(re.findall(r"(\w+)[=!]", selector))
        assert labels
        assert labels <= {*known[name].labels, *BY_PROMETHEUS}
    allowed = {label for name in names for label in known[name].labels} | BY_PROMETHEUS
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",")} <= allowed


def test_rules_are_found() -> None:
    """The pattern above sees each of them."""
    assert len(expressions()) == sum(len(panel["targets"]) for panel in panels()) + RULES.count("- alert:")
    assert RULES.count("- alert:") > 5


def test_the_dashboard_is_whole() -> None:
    """Panels have numbers and titles of their own, lie beside each other, and ask the provisioned data source."""
    everything = DASHBOARD["panels"]
    assert (
        len({panel["id"] for panel in everything}) == len({panel["title"] for panel in everything}) == len(everything)
    )
    cells = [
        (x, y)
        for panel in everything
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    sources = {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]}
    (uid,) = sources
    assert f"uid: {uid} " in (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()


def test_prometheus_asks_the_default_port() -> None:
    """The port of containers is that of the settings, so that nobody has to set it twice."""
    assert f"port: {Settings.model_fields['metrics_port'].default}\n" in (DEPLOY / "prometheus.yml").read_text()
