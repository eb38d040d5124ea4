"""Steps run without kernels where these cannot be used, and it is said why."""

import sys
from collections.abc import Sequence

import pytest

from tokenmill.app.milling.curation import fast_steps
from tokenmill.app.milling.curation.choosing import WITH_KERNELS, compile_kernels, faster_steps
from tokenmill.app.milling.curation.fast_language import FastLanguage
from tokenmill.app.milling.curation.fast_steps import FastStep
from tokenmill.app.milling.steps.basic import NotEmpty
from tokenmill.app.milling.steps.gopher_quality import GopherQuality
from tokenmill.app.milling.steps.protocol import Step


def test_steps_without_kernels_stay_as_they_are() -> None:
    steps = (NotEmpty(),)
    assert faster_steps(steps) == (steps, "")


@pytest.mark.slow
def test_steps_get_kernels() -> None:
    (plain, fast), why = faster_steps([NotEmpty(), GopherQuality()])
    assert isinstance(plain, NotEmpty)
    assert isinstance(fast, FastStep)
    assert fast.name in WITH_KERNELS
    assert fast.describe() == GopherQuality().describe()
    assert why == ""


def test_without_numba_the_references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenmill.app.milling.curation.fast_steps", None)
    steps = (GopherQuality(),)
    same, why = faster_steps(steps)
    assert same == steps
    assert "numba cannot be loaded" in why


def test_with_an_unknown_spacy_the_references_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.app.milling.curation.chunk_words.KNOWN_RULES", "")
    fast_steps.word_split.cache_clear()
    steps = (GopherQuality(),)
    same, why = faster_steps(steps)
    fast_steps.word_split.cache_clear()
    assert same == steps
    assert "cuts English words by other expressions" in why


@pytest.mark.slow
def test_kernels_of_all_steps_are_compiled_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled are the steps that get kernels, no more and no less."""
    made: list[Step] = []
    real = fast_steps.with_kernels

    def kept(steps: Sequence[Step]) -> Sequence[Step]:
        made.extend(real(steps))
        return made

    monkeypatch.setattr(fast_steps, "with_kernels", kept)
    compile_kernels()
    assert {step.name for step in made} == WITH_KERNELS
    assert {type(step) for step in made} == {FastStep, FastLanguage}
