"""Kernels give the answers of the references, for any text, and are not used where they do not."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import CHUNKS, curated_texts, odd_texts
from tokenmill.app.milling.curation import compiled, fast_steps
from tokenmill.app.milling.curation.choosing import CURATION_PROBE, WITH_KERNELS, compile_kernels, faster_steps
from tokenmill.app.milling.curation.fast_language import FastLanguage, gram_hash, read_model
from tokenmill.app.milling.curation.fast_steps import FastStep, Judgement, WordSplit, with_kernels
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.basic import NotEmpty
from tokenmill.app.milling.steps.c4_quality import C4Quality
from tokenmill.app.milling.steps.fineweb_quality import FinewebQuality
from tokenmill.app.milling.steps.gopher_quality import GopherQuality
from tokenmill.app.milling.steps.gopher_repetition import GopherRepetition
from tokenmill.app.milling.steps.language import LanguageStep, model_file
from tokenmill.app.milling.steps.protocol import Answer, Rejected, Step, each_alone
from tokenmill.documents import Document, Limits
from tokenmill.errors import EngineError, SettingsError

STEPS: tuple[Step, ...] = (
    GopherRepetition(),
    GopherRepetition(None, None, None, None, ((2, 0.5), (1, 0.3)), ((3, 0.2), (1, 0.9))),
    GopherQuality(),
    GopherQuality(min_doc_words=1, min_avg_word_length=0, max_avg_word_length=None, stop_words=("the", "語")),
    GopherQuality(min_doc_words=0, min_stop_words=0, max_non_alpha_words_ratio=0.2, max_symbol_word_ratio=0.5),
    C4Quality(),
    C4Quality(filter_no_terminal_punct=False),
    C4Quality(filter_no_terminal_punct=False, min_num_sentences=1, min_words_per_line=1, max_word_length=1200),
    C4Quality(min_num_sentences=-1, max_word_length=-1, remove_citations=False, filter_policy=False),
    C4Quality(filter_curly_bracket=False, filter_lorem_ipsum=False, filter_javascript=False, min_num_sentences=2),
    FinewebQuality(),
    FinewebQuality(line_punct_thr=0.0, short_line_thr=1.0, char_duplicates_ratio=1.0),
    FinewebQuality(line_punct_exclude_zero=True, stop_chars=("d", "語"), short_line_length=3, new_line_ratio=0.1),
)


@pytest.fixture(scope="module")
def fast() -> tuple[Step, ...]:
    found = with_kernels(STEPS)
    assert all(isinstance(step, FastStep) for step in found)  # else the reference would be compared with itself
    return found


def columns(texts: list[str]) -> DocumentColumns:
    return DocumentColumns.without_fields(texts, [None] * len(texts))


def assert_alike(fast: tuple[Step, ...], texts: list[str]) -> None:
    for step, reference in zip(fast, STEPS, strict=True):
        assert list(step.many(columns(texts))) == list(each_alone(reference, columns(texts)))


@given(st.lists(curated_texts(), min_size=1, max_size=6))
@pytest.mark.slow
@example(["foo:) ) and foo:) )"])
@example(["0\u2e80the  "])
@example(["a IS_ALPHA b. " * 9])
@example(["[1] [2] [3]\nThree words here.\n" * 4])
def test_kernels_answer_as_the_references(fast: tuple[Step, ...], texts: list[str]) -> None:
    assert_alike(fast, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", odd_texts(1000))
@pytest.mark.cases(3)
def test_odd_texts_have_the_references_answers(fast: tuple[Step, ...], name: str) -> None:
    assert_alike(fast, [odd_texts(20_000)[name]])


@pytest.mark.slow
def test_n_grams_are_equal_where_their_words_are_cut_in_other_places() -> None:
    """What datatrove compares is words joined without a space: six may have come before, and no five of them."""
    one, other = "alphabeta gamma delta epsilon zetaeta theta", "alpha betagamma delta epsilon zeta etatheta"
    text = f"{one} between them are some words of no other kind than these {other}"
    (step,) = with_kernels([GopherRepetition(top_n_grams=())])
    assert list(step.many(columns([text]))) == [(0, Rejected("duplicated_6_n_grams"))]
    assert step(Document(text)) == Rejected("duplicated_6_n_grams")


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_chunks_are_forgotten_where_the_table_is_full(monkeypatch: pytest.MonkeyPatch, fast: tuple[Step, ...]) -> None:
    words = fast[0].words  # type: ignore[attr-defined]
    monkeypatch.setattr("tokenmill.app.milling.curation.chunk_lookup.MOST_ENTRIES", 50)
    monkeypatch.setattr("tokenmill.app.milling.curation.chunk_lookup.TABLE_ENTRIES", 8)
    words.forget()
    texts = [" ".join(f"word{n}a foo:) ) {n}." for n in range(low, low + 90)) for low in range(0, 900, 60)]
    for text in texts:
        assert_alike(fast, [text])
    assert len(words.table.hashes) < 1000
    assert words.table.used[0] < 600


def _wrong(_split: WordSplit, texts: list[str]) -> Iterator[tuple[int, Judgement]]:
    return ((at, Rejected("gopher_long_doc")) for at, text in enumerate(texts) if "z" in text)


@pytest.mark.slow
def test_a_wrong_kernel_is_caught_by_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_steps, "judge_of", lambda _step: _wrong)
    with pytest.raises(SettingsError, match="gopher_quality: the kernel says"):
        with_kernels([GopherQuality()])


@pytest.mark.slow
def test_a_wrong_kernel_is_caught_by_the_sample(fast: tuple[Step, ...]) -> None:
    """A difference that the probe does not have stops the partition; documents like it are chosen by their content."""
    step = FastStep(GopherQuality(), _wrong, fast[0].words)  # type: ignore[attr-defined]
    texts = [f"z {number} " * 9 for number in range(3 * fast_steps.SAMPLE_ONE_IN)]
    with pytest.raises(EngineError, match="gopher_quality: the kernel says gopher_long_doc"):
        step.many(columns(texts))


@pytest.mark.slow
def test_the_sample_is_the_same_in_every_part(fast: tuple[Step, ...]) -> None:
    words: Any = fast[0].words  # type: ignore[attr-defined]
    texts = [f"some text number {number}" for number in range(60_000)]
    chosen = {texts[at] for located in words.locate(texts) for at in fast_steps.sampled(located)}
    mixed = texts[::-1][:30_000]
    again = {mixed[at] for located in words.locate(mixed) for at in fast_steps.sampled(located)}
    assert again == chosen & set(mixed)
    assert 1 <= len(chosen) <= 30


def test_a_step_without_a_kernel_is_never_said_to_be_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else each machine was told once that filters are compiled, after they had been at set-up."""
    monkeypatch.setattr(compiled, "kernel_folder", lambda: tmp_path)
    steps = (NotEmpty(),)
    assert faster_steps(steps) == (steps, "")
    with_kernels(steps)
    assert not caplog.records


ODD = (
    *("", "\n", "\0", "</s>", "00 </s>", "ein Satz </s> and what stands behind it is read no more"),
    *("__label__en", "__label__en a", "<", "é", "\u3042", "a\x0bb\x0cc\x00d\te", "😀" * 300, "x" * 2000),
    *("THE MILL GRINDS THE CORN, 1234", "ΑΛΈΘΕΙ ΤΟ ΣΙΤΆΡΙ"),  # noqa: RUF001 - Greek
)


def _same(step: LanguageStep, texts: Sequence[str]) -> None:
    documents = columns(list(texts))
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
        fast.many(columns(["one text"]))


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
    made: list[Step] = []
    real = fast_steps.with_kernels

    def kept(steps: Sequence[Step]) -> Sequence[Step]:
        made.extend(real(steps))
        return made

    monkeypatch.setattr(fast_steps, "with_kernels", kept)
    compile_kernels()
    assert {step.name for step in made} == WITH_KERNELS
    assert {type(step) for step in made} == {FastStep, FastLanguage}
