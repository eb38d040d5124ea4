"""Lists of steps that have a name."""

import pytest

from tests.stages.steps.curated import LIMITS, PLAIN
from tokenmill.documents import Document
from tokenmill.errors import SettingsError
from tokenmill.stages.steps import Rejected
from tokenmill.stages.steps.pipeline import canonical_entries, open_pipeline
from tokenmill.stages.steps.profiles import PROFILES, spelled_out


def test_names_stand_for_steps() -> None:
    """Of profiles and of steps, between tables."""
    steps = spelled_out(["sample", "gopher", {"name": "length", "min_words": 3}])
    assert [step["name"] for step in steps] == ["sample", "gopher_repetition", "gopher_quality", "length"]
    with pytest.raises(SettingsError, match=r"'fineweb' is no profile and no step \(did you mean fineweb-2024\?\)"):
        spelled_out(["fineweb"])
    for other in ("gopher", {"name": "sample"}, 3):
        with pytest.raises(SettingsError, match="steps are a list"):
            spelled_out(other)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_written_as_recipes_have_it(name: str) -> None:
    """So that who names it has the recipe of who writes it out."""
    assert canonical_entries(PROFILES[name].steps) == PROFILES[name].steps


def test_finewebs_order_is_kept() -> None:
    """Repetition, quality, C4 without its rule for line ends, FineWeb's own, personal data."""
    steps = open_pipeline(PROFILES["fineweb-2024"].steps, limits=LIMITS)
    names = [step.name for step in steps]
    assert names == ["gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality", "replace_pii"]
    answer = steps[0](Document(PLAIN * 20))
    assert isinstance(answer, Rejected)
    assert answer.reason.startswith("dup_")
