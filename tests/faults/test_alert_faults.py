"""What `make alerts` does to real services, and what the docs say of it."""

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml

from tests.faults.alert_faults import FACTOR, INJECTED, own_seconds
from tests.faults.alerting import CONFIGURATION, RULES, faster
from tests.test_alerts import FAULTS, RELIABILITY, seconds

TEXT: Final = (CONFIGURATION.parent / RULES).read_text()


def test_the_page_on_reliability_says_which_faults_are_real() -> None:
    """And why each of the others is given as samples alone."""
    rows = re.findall(r"^\| ([^|`]+) \| `TokenMill\w+` \| (yes|no: [^|]+) \|$", RELIABILITY.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [*FAULTS]
    assert {name for name, said in rows if said == "yes"} == INJECTED.keys()


def test_all_durations_of_the_rules_are_divided() -> None:
    """Those of a time that has no unit as well; numbers of other things stay."""
    rules: list[Mapping[str, Any]] = yaml.safe_load(faster(TEXT, FACTOR))["groups"][0]["rules"]
    found = {rule["alert"]: rule for rule in rules}
    for rule in yaml.safe_load(TEXT)["groups"][0]["rules"]:
        assert found[rule["alert"]].get("for", "0ms") == f"{seconds(rule.get('for', '0s')) * 1000 // FACTOR}ms"
    text = faster(TEXT, FACTOR)
    assert not re.search(r"\[\d+[smh]\]", text)
    assert "tokenmill_durable_lag_seconds) > 120" in text
    assert "4 * 720) < 0" in text
    assert "- time()) < 1209600" in text


@pytest.mark.parametrize(
    ("alert", "own"), [("TokenMillWorkerDown", 60), ("TokenMillFilterChanged", 900), ("TokenMillNotDurable", 660)]
)
def test_the_times_of_an_alert_are_its_for_and_what_it_looks_back(alert: str, own: float) -> None:
    """Not the hours that it compares with."""
    assert own_seconds(alert) == own / FACTOR
