"""The list of steps: written in one way, read with its lists, and opened."""

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import LIMITS, PLAIN, odd_texts, opened
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.milling.steps.pipeline import (
    MAX_STEPS,
    PROFILES,
    STEPS,
    canonical_entries,
    list_digests,
    open_pipeline,
    read_pipeline,
    spelled_out,
    steps_as_toml,
    toml_value,
)
from tokenmill.app.milling.steps.protocol import Step
from tokenmill.documents import Document
from tokenmill.errors import SettingsError
from tokenmill.parameters import parameters_of
from tokenmill.recipe import canonical_json

NEEDED: Final[dict[str, dict[str, Any]]] = {
    "url": {"metadata_fields": ("url",), "banned_subwords": ["bad"]},
    "language": {"metadata_fields": ("language",)},
    "words": {"words": ["a", "word word word word word word word bad"], "max_share": 0.9},
    "regex": {"regex_exp": r"(a|b|mill.*grain|[a-z]+ing)+ zzz"},
}


def _opened(name: str, folder: Path) -> Any:
    texts = folder / "evaluation.txt"
    texts.write_text("word " * 20)
    return opened(name, **NEEDED.get(name, {"texts": str(texts)} if name == "decontaminate" else {}))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_says_what_it_is_with_every_parameter(name: str, tmp_path: Path) -> None:
    step = _opened(name, tmp_path)
    assert step.name == name
    said = step.describe()
    assert said["name"] == name
    assert said["version"] >= 1
    written = steps_as_toml([{"name": name}])
    (entry,) = tomllib.loads(written)["steps"]
    for parameter in parameters_of(STEPS[name]):
        assert (parameter.name in entry) or f"# {parameter.name} = " in written
    assert max(map(len, written.splitlines())) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_texts_that_make_rules_explode_have_answers(name: str, tmp_path: Path) -> None:
    step = _opened(name, tmp_path)
    documents = [Document(text, n, {"url": "http://a.b/c"}) for n, text in enumerate(odd_texts(20_000).values())]
    answers = dict(step.many(DocumentColumns.of(documents)))
    for index, document in enumerate(documents):
        answer = step(document)
        assert answers.get(index, document) == answer
        if isinstance(answer, Rejected):
            assert 0 < len(answer.reason) <= 32
            assert set(answer.reason) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


STORY = """The old miller lived beside a river that never froze, and each morning he opened the wooden gates himself.
Farmers came from three valleys with their carts, because nobody else could grind barley so finely for bread.
One winter a stranger arrived without any grain at all, and asked whether he might learn how such stones are dressed.
They have worked together ever since, though neither of them would say who became the better craftsman of the two.
Visitors who ask to be shown the great wheel are given warm soup first, then a lamp, and finally a long explanation.
"""


def test_names_stand_for_steps() -> None:
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
    written = steps_as_toml(PROFILES[name].steps)
    assert canonical_entries(tomllib.loads(written)["steps"]) == PROFILES[name].steps


@pytest.mark.parametrize("change", [str.upper, lambda s: s.replace("\n", "\r\n"), lambda s: s.replace("\n", "\r")])
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
    steps = open_pipeline(PROFILES["fineweb-2024"].steps, limits=LIMITS)
    names = [step.name for step in steps]
    assert names == ["gopher_repetition", "gopher_quality", "c4_quality", "fineweb_quality", "replace_pii"]
    answer = steps[0](Document(PLAIN * 20))
    assert isinstance(answer, Rejected)
    assert answer.reason.startswith("dup_")


@given(st.recursive(st.text(st.characters(codec="utf-8")) | st.booleans() | st.integers(-(2**63), 2**63 - 1), st.lists))
def test_values_read_back_equal(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


def test_equal_steps_are_written_alike() -> None:
    written = canonical_entries([{"name": "sample", "rate": 1, "seed": 0}, {"name": "words", "words": ("a",)}])
    assert written == ({"name": "sample", "rate": 1.0}, {"name": "words", "words": ["a"]})
    assert canonical_entries(written) == written
    assert canonical_entries(json.loads(canonical_json(written))) == written
    assert canonical_entries([{"name": "sample", "rate": 0.5}]) == ({"name": "sample"},)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"name": "gopher_qualty"},
            r"step 2: 'gopher_qualty' is unknown \(did you mean gopher_quality\?\); there are ",
        ),
        ({"rate": 1}, "step 2: it must be a table with a name"),
        ("sample", "step 2: it must be a table"),
        ({"name": "sample", "rat": 1}, r"step 2 \(sample\): unknown parameter rat \(did you mean rate\?\)"),
        ({"name": "sample", "rate": 2}, r"step 2 \(sample\): rate = 2\.0: a share is from 0 to 1"),
    ],
)
def test_a_step_that_cannot_be_is_named_by_its_number(entry: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^{said}"):
        canonical_entries([{"name": "sample"}, entry])


def test_there_are_few_steps() -> None:
    """Each has counters in every message."""
    assert len(canonical_entries([{"name": "sample"}] * MAX_STEPS)) == MAX_STEPS
    with pytest.raises(SettingsError, match=f"{MAX_STEPS + 1} steps, where a recipe has {MAX_STEPS} at most"):
        canonical_entries([{"name": "sample"}] * (MAX_STEPS + 1))


def test_a_list_is_named_by_its_content(tmp_path: Path) -> None:
    """Not by its path; the recipe needs no file any more."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"bad\n#{name}")
    one, two = (read_pipeline([{"name": "words", "words": str(tmp_path / name)}]) for name in ("one", "two"))
    assert one == two
    (digest,) = one.lists
    assert one.entries == ({"name": "words", "words": f"sha256:{digest}"},)
    assert list_digests(one.entries) == {digest}
    assert list_digests([{"name": "words", "words": ["bad"]}, {"name": "newer", "words": "a"}]) == frozenset()
    (step,) = open_pipeline(one.entries, one.lists, limits=LIMITS)
    assert step.describe()["words"] == f"sha256:{digest}"
    lost = rf"step 1 \(words\): the list words \(SHA-256 {digest[:12]}…\) is not there"
    with pytest.raises(SettingsError, match=lost):
        open_pipeline(one.entries, limits=LIMITS)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"step 1 \(words\): words: .*binary cannot be used: .*utf-8"):
        read_pipeline([{"name": "words", "words": str(tmp_path / "binary")}])
