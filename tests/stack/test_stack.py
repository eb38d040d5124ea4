"""The stack, run once (`story`): what is true of it in the end, whatever was done to it."""

import re

import pytest

from .prometheus import Panel, dashboard_queries
from .story import Story

ELSEWHERE = re.compile("tokenmill_(mirror|trainer|produced)_")
MAY_BE_EMPTY = {"Time to catch up, by topic"}
"""Where nothing waits, there is nothing to catch up with."""

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]


def test_the_faults_happened_while_text_was_coming_in(story: Story) -> None:
    """A story without them would prove nothing."""
    assert story.sending_during == ["kill", "replace", "scale to 3", "scale to 1", "restart"]
    assert story.killed[0] != story.killed[1] != 0
    assert story.replaced[0] != story.replaced[1]
    assert story.mills == [3, 1]
    assert story.kafka_started[0] != story.kafka_started[1]


def test_every_document_is_in_the_blocks_once(story: Story) -> None:
    """From inside and outside: as many documents and tokens as were pushed and not filtered, none lost, none twice."""
    totals = story.verified["totals"]
    assert totals["kept"] == story.documents
    assert totals["tokens"] == story.tokens
    assert not totals["dead_lettered"]


def test_the_filter_drops_what_its_reference_drops(story: Story) -> None:
    """By its kernel, which the image brings."""
    assert story.inside.filtered
    assert story.verified["totals"]["filtered"] == story.inside.filtered
    assert "tokenizer engine" in story.mill_log  # which it logs just before
    assert "plain steps" not in story.mill_log


def test_verify_finds_topic_and_store_equal_to_the_reference(story: Story) -> None:
    verified = story.verified
    assert verified["ok"]
    assert verified["complete"]
    assert (verified["lost"], verified["duplicated"], verified["different"], verified["behind"]) == (0, 0, 0, 0)
    assert verified["store_blocks"] == verified["blocks"] > 0
    assert all(chain["reference"] for chain in verified["chains"])


@pytest.mark.parametrize("panel", dashboard_queries(), ids=lambda panel: f"{panel.title}: {panel.expression}")
def test_each_query_of_the_dashboard_has_data(story: Story, panel: Panel) -> None:
    """From the real Prometheus, over the whole run; `tests.test_dashboards` has mirrors, trainers and producers."""
    assert story.points[panel] > 0 or ELSEWHERE.search(panel.expression) or panel.title in MAY_BE_EMPTY


def test_prometheus_reaches_every_service(story: Story) -> None:
    """Mills and segments, each with an address of its own."""
    up = {target["labels"]["service"] for target in story.targets if target["health"] == "up"}
    assert {"mill", "segments"} <= up, story.targets


def test_the_alerts_are_understood(story: Story) -> None:
    assert story.rules
    assert {rule["health"] for rule in story.rules} == {"ok"}


@pytest.mark.parametrize("service", ["mill", "segments"])
def test_services_are_well_in_the_end(story: Story, service: str) -> None:
    assert story.healthy[service]
