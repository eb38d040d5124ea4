"""Steps run without kernels where these cannot be used, and it is said why."""

import sys

import pytest

from tokenmill.stages.curation import fast_steps
from tokenmill.stages.curation.choosing import WITH_KERNELS, faster_steps
from tokenmill.stages.curation.fast_steps import FastStep
from tokenmill.stages.steps.gopher_quality import GopherQuality
from tokenmill.stages.steps.not_empty import NotEmpty


def test_steps_without_kernels_stay_as_they_are() -> None:
    """And nothing is said."""
    steps = (NotEmpty(),)
    assert faster_steps(steps) == (steps, "")


def test_steps_get_kernels() -> None:
    """Those that have one; the others stay."""
    (plain, fast), why = faster_steps([NotEmpty(), GopherQuality()])
    assert isinstance(plain, NotEmpty)
    assert isinstance(fast, FastStep)
    assert fast.name in WITH_KERNELS
    assert fast.describe() == GopherQuality().describe()
    assert why == ""


def test_without_numba_the_references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said why."""
    monkeypatch.setitem(sys.modules, "tokenmill.stages.curation.fast_steps", None)
    steps = (GopherQuality(),)
    same, why = faster_steps(steps)
    assert same == steps
    assert "numba cannot be loaded" in why


def test_with_an_unknown_spacy_the_references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words may be others than the kernels'."""
    monkeypatch.setattr("tokenmill.stages.curation.english_rules.KNOWN_RULES", "")
    fast_steps.word_split.cache_clear()
    steps = (GopherQuality(),)
    same, why = faster_steps(steps)
    fast_steps.word_split.cache_clear()
    assert same == steps
    assert "cuts English words by other expressions" in why
