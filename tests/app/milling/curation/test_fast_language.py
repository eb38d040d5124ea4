"""The kernel of ``language`` against fastText."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.curation.odd_pieces import CHUNKS
from tokenmill.app.milling.curation.choosing import CURATION_PROBE
from tokenmill.app.milling.curation.fast_language import FastLanguage, gram_hash, read_model
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.language import LanguageStep, model_file
from tokenmill.app.milling.steps.protocol import Answer, each_alone
from tokenmill.documents import Limits
from tokenmill.errors import EngineError

ODD = (
    "",
    "\n",
    "\0",
    "</s>",
    "00 </s>",
    "ein Satz </s> and what stands behind it is read no more",
    "__label__en",
    "__label__en a",
    "<",
    "é",
    "THE MILL GRINDS THE CORN, 1234",
    "ΑΛΈΘΕΙ ΤΟ ΣΙΤΆΡΙ",  # noqa: RUF001 - Greek
    "\u3042",
    "a\x0bb\x0cc\x00d\te",
    "😀" * 300,
    "x" * 2000,
)


def _same(step: LanguageStep, texts: Sequence[str]) -> None:
    documents = DocumentColumns.without_fields(list(texts), [None] * len(texts))
    assert _shown(FastLanguage.of(step).many(documents)) == _shown(each_alone(step, documents))


def _shown(answers: Iterable[tuple[int, Answer]]) -> list[tuple[int, str]]:
    return [(at, repr(answer)) for at, answer in answers]  # errors are equal to none but themselves


def test_it_says_what_fasttext_says() -> None:
    texts = [*CURATION_PROBE, *ODD]
    assert FastLanguage.of(LanguageStep()).languages_of(texts) == [LanguageStep().look_at(text) for text in texts]
    for beginning in (1, 50, 200, 201, 5000):
        _same(LanguageStep(("en", "de"), beginning=beginning), texts)


@given(st.lists(st.text() | st.lists(st.sampled_from([*CHUNKS, *ODD])).map(" ".join), max_size=5))
def test_any_text_has_fasttexts_language_and_score(texts: list[str]) -> None:
    assert FastLanguage.of(LanguageStep()).languages_of(texts) == [LanguageStep().look_at(text) for text in texts]


def test_fields_are_set_and_errors_returned() -> None:
    step = LanguageStep(label_only=True)
    _same(step.within(("language", "language_score"), Limits(1000, 20, 200)), CURATION_PROBE)
    _same(step.within(("language", "language_score"), Limits(1000, 20, 20)), CURATION_PROBE)


def test_another_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = FastLanguage.of(LanguageStep())
    monkeypatch.setattr("tokenmill.app.milling.curation.fast_language.SAMPLE_ONE_IN", 1)
    monkeypatch.setattr(LanguageStep, "look_at", lambda _step, _text: ("xx", 0.5))
    with pytest.raises(EngineError, match="language: the kernel says"):
        fast.many(DocumentColumns.without_fields(["one text"], [None]))


def test_another_file_is_refused(tmp_path: Path) -> None:
    data = model_file().read_bytes()
    (tmp_path / "other").write_bytes(b"1234" + data[4:])
    with pytest.raises(ValueError, match="no fastText model of format 12"):
        read_model(tmp_path / "other")
    (tmp_path / "longer").write_bytes(data + b"1")
    with pytest.raises(ValueError, match="longer than what is in it"):
        read_model(tmp_path / "longer")


def test_hash_takes_bytes_as_signed() -> None:
    assert gram_hash(b"a") == 0xE40C292C
    assert gram_hash("é".encode()) != gram_hash(b"a")
