"""A share of the documents."""

import pytest

from tests.app.milling.steps.curated import opened
from tokenmill.app.milling.steps import Rejected, Step
from tokenmill.documents import Document
from tokenmill.errors import SettingsError


def _kept(step: Step, count: int = 2000) -> set[int]:
    documents = (Document(f"text {n}", n) for n in range(count))
    return {n for n, document in enumerate(documents) if not isinstance(step(document), Rejected)}


def test_about_the_share_is_kept_and_a_larger_share_keeps_all_of_a_smaller_one() -> None:
    """So a sample can grow."""
    small, large = _kept(opened("sample", rate=0.1)), _kept(opened("sample", rate=0.3))
    assert 150 < len(small) < 250
    assert 520 < len(large) < 680
    assert small < large
    assert _kept(opened("sample", rate=0.1, seed=1)) != small
    assert _kept(opened("sample", rate=0)) == set()
    assert len(_kept(opened("sample", rate=1.0))) == 2000


def test_the_choice_stays_what_it_is() -> None:
    """It is a rule of the format: other documents would be other streams."""
    assert sorted(_kept(opened("sample", rate=0.01), 400)) == [14, 72, 91, 116, 193]


def test_the_id_decides_or_the_text() -> None:
    """The text where there is no id, or where that is asked for."""
    by_id, by_text = opened("sample"), opened("sample", by="content")
    same_id = {isinstance(by_id(Document(f"{n}", "name")), Rejected) for n in range(64)}
    assert len(same_id) == 1
    for n in range(64):
        without = isinstance(by_id(Document(f"{n}")), Rejected)
        assert isinstance(by_text(Document(f"{n}", "name")), Rejected) is without


def test_a_rate_that_is_no_share_is_refused() -> None:
    """A percentage, perhaps."""
    with pytest.raises(SettingsError, match=r"rate = 5\.0: a share is from 0 to 1"):
        opened("sample", rate=5)
