"""Lists of steps that have a name."""

from collections.abc import Callable, Sequence
from unicodedata import normalize

import pytest

from tests.app.milling.steps.curated import LIMITS, PLAIN
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.milling.steps.pipeline import canonical_entries, open_pipeline
from tokenmill.app.milling.steps.profiles import PROFILES, spelled_out
from tokenmill.app.milling.steps.protocol import Step
from tokenmill.documents import Document
from tokenmill.errors import SettingsError

STORY = """The old miller lived beside a river that never froze, and each morning he opened the wooden gates himself.
Farmers came from three valleys with their carts, because nobody else could grind barley so finely for bread.
One winter a stranger arrived without any grain at all, and asked whether he might learn how such stones are dressed.
They have worked together ever since, though neither of them would say who became the better craftsman of the two.
Visitors who ask to be shown the great wheel are given warm soup first, then a lamp, and finally a long explanation.
"""


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


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: text.replace("\n", "\r\n"), lambda text: text.replace("\n", "\r")]
)
@pytest.mark.parametrize("good", [True, False])
def test_a_levelled_verdict_hangs_on_what_a_text_says(change: Callable[[str], str], good: object) -> None:
    """The same for every way to write it down; the profile of datatrove's rules differs."""
    text = STORY if good else PLAIN * 20
    levelled = open_pipeline(PROFILES["fineweb-levelled"].steps, limits=LIMITS)
    assert verdict(levelled, change(text)) == verdict(levelled, text)
    assert (verdict(levelled, text) == "") is good
    assert verdict(levelled, normalize("NFD", f"{text}\u00c9t\u00e9.")) == verdict(levelled, f"{text}\u00c9t\u00e9.")


def verdict(steps: Sequence[Step], text: str) -> str:
    """Return the reason for which the first step that does so filters a text out; nothing if none does."""
    document = Document(text)
    for step in steps:
        answer = step(document)
        if isinstance(answer, Rejected):
            return f"{step.name}.{answer.reason}"
        document = answer
    return ""


def test_finewebs_order_is_kept() -> None:
    """Repetition, quality, C4 without its rule for line ends, FineWeb's own, personal data."""
    steps = open_pipeline(PROFILES["fineweb-2024"].steps, limits=LIMITS)
    names = [step.name for step in steps]
    assert names == ["gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality", "replace_pii"]
    answer = steps[0](Document(PLAIN * 20))
    assert isinstance(answer, Rejected)
    assert answer.reason.startswith("dup_")
