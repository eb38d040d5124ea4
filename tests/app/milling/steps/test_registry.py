"""The steps that settings may name."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.app.milling.steps.curated import odd_texts, opened
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.milling.steps.registry import STEPS
from tokenmill.documents import Document

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
def test_a_step_says_what_it_is(name: str, tmp_path: Path) -> None:
    """Its name, and the version of its rules."""
    step = _opened(name, tmp_path)
    assert step.name == name
    said = step.describe()
    assert said["name"] == name
    assert said["version"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_texts_that_make_rules_explode_have_answers(name: str, tmp_path: Path) -> None:
    """The same alone and among others; reasons are names of counters."""
    step = _opened(name, tmp_path)
    documents = [
        Document(text, number, {"url": "http://a.b/c"}) for number, text in enumerate(odd_texts(20_000).values())
    ]
    answers = dict(step.many(DocumentColumns.of(documents)))
    for index, document in enumerate(documents):
        answer = step(document)
        assert answers.get(index, document) == answer
        if isinstance(answer, Rejected):
            assert 0 < len(answer.reason) <= 32
            assert set(answer.reason) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
