"""A trial counts what the reference counts, and shows documents that the plain steps say the same of."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.test_columns import Whims, whims, with_steps
from tests.mills import RECIPE, SILENT, Source, make_source, tiny_bpe
from tests.strategies import feed_sizes, sources, values
from tokenmill.app.funnel import SHOWN_CHARACTERS, TriedDocument, beginning_of, where_they_differ
from tokenmill.app.milling.outcomes import NO_TOKENS, NO_TOKENS_DETAIL, Kind, Outcome, Stages
from tokenmill.app.milling.packing.document_shapes import DETAILS
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.reference import Reference
from tokenmill.app.milling.tokenizers import RAW_BYTES, EngineName, TokenizerFile
from tokenmill.app.tools import trial as module
from tokenmill.app.tools.trial import StageSpeed, Trial, TrialResult
from tokenmill.documents import Document, Record
from tokenmill.wire.totals import Amount, Totals

value_lists = st.lists(values, max_size=30)
stepped = st.builds(with_steps, sources, whims)


def tried(source: Source, found: Sequence[bytes], sizes: Sequence[int] = (), examples: int = 3) -> TrialResult:
    """Return the result of a trial that gets the values in feeds of these sizes, again and again."""
    trial = Trial(source.stages, source.recipes, examples)
    at = 0
    while at < len(found):
        for size in sizes or (len(found),):
            part = found[at : at + size]
            trial.feed(part, [f"file:{at + number}" for number in range(len(part))])
            at += size
    result = trial.result()
    assert result.records == len(found)
    return result


def plain(stages: Stages) -> Stages:
    """Return stages that count each step, as a trial's do."""
    return replace(stages, every_step_counts=True)


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_its_totals_are_the_references(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    """For any steps and splits, byte for byte: so they are those of the ledger."""
    result = tried(source, found, sizes)
    records = [Record(offset, -1, None, value) for offset, value in enumerate(found)]
    for recipe in source.recipes:
        reference = Reference(recipe, plain(source.stages), 0, 0)
        list(reference.blocks(records))
        assert result.splits[recipe.split].pack() == reference.totals.pack()
    assert result.totals.pack() == sum(result.splits.values(), Totals()).pack()
    owned = sum(source.stages.outcome(record).split in result.splits for record in records)
    assert result.unowned == len(records) - owned


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_examples_are_what_the_plain_steps_say(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    """As many of each reason as are wanted and there; with the place, the detail and the text of that document."""
    result = tried(source, found, sizes, examples=2)
    totals = result.totals
    assert list(result.rejected) == [row.reason for row in result.retention.funnel()]
    counted = {**result.rejected, **{f"dead {reason}": shown for reason, shown in result.dead_letters.items()}}
    numbers = {**totals.filtered, **{f"dead {reason}": number for reason, number in totals.dead_lettered.items()}}
    assert {reason: len(shown) for reason, shown in counted.items()} == {
        reason: min(2, number) for reason, number in numbers.items()
    }
    assert len(result.kept) == min(2, totals.kept)
    for reason, shown in result.rejected.items():
        for one in shown:
            outcome, passed = asked(source, found, number_of(one))
            expected = outcome.detail if outcome.kind is Kind.FILTERED else DETAILS[reason]
            assert reason == (outcome.reason or reason)
            assert one == TriedDocument(one.place, expected, beginning_of(passed[-1].text))
    for one in result.kept:
        assert one.text == beginning_of(asked(source, found, number_of(one))[1][-1].text)


def asked(source: Source, found: Sequence[bytes], number: int) -> tuple[Outcome, list[Document]]:
    """Return what the stages say of a record, and the document before and after each step."""
    passed: list[Document] = []
    return source.stages.outcome(Record(number, -1, None, found[number]), (), passed), passed


def number_of(one: TriedDocument) -> int:
    """Return which record a document comes from."""
    return int(one.place.removeprefix("file:"))


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_tokens_of_what_is_dropped_are_counted(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    """As if each text were kept as it came to the step that filtered it out."""
    result = tried(source, found, sizes)
    expected = Counter(dict.fromkeys(result.rejected, 0))
    around = len(source.recipes[0].begin_of_document) + len(source.recipes[0].after)
    for number in range(len(found)):
        outcome, passed = asked(source, found, number)
        if outcome.kind is Kind.FILTERED and outcome.split in result.splits:
            length = len(source.stages.engine.encode([passed[-1].text]).ids)
            expected[outcome.reason] += length + around if length else 0
    assert result.dropped_tokens == expected


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_feeds_decide_nothing(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    """But the time that it takes."""
    one, other = tried(source, found).to_dict(), tried(source, found, sizes).to_dict()
    del one["speeds"], other["speeds"]
    assert one == other
    json.dumps(one)


@given(source=stepped, found=value_lists)
def test_changed_texts_are_counted_and_shown(source: Source, found: list[bytes]) -> None:
    """By step: before and after."""
    result = tried(source, found, examples=100)
    expected: dict[str, dict[str, tuple[str, str]]] = {}
    for number in range(len(found)):
        _, passed = asked(source, found, number)
        for label, before, after in zip(source.stages.labels, passed, passed[1:], strict=False):
            if before.text != after.text:
                expected.setdefault(label, {})[f"file:{number}"] = (before.text, after.text)
    assert result.changes == {label: len(texts) for label, texts in expected.items()}
    assert {label: [one.place for one in shown] for label, shown in result.changed.items()} == {
        label: list(texts) for label, texts in expected.items()
    }
    for label, shown in result.changed.items():
        for one in shown:
            assert where_they_differ(*expected[label][one.place]) == (one.text, one.after)


def test_a_large_record_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked about at once, and a beginning of it is kept: memory does not follow the input."""
    monkeypatch.setattr(module, "HELD_BYTES", 10)
    trial = Trial(make_source(replace(RECIPE, min_chars=500)).stages, [RECIPE])
    trial.feed([b"x" * 450], ["a"])
    (sample,) = trial._left_out.values()
    (candidate,) = sample.items()
    assert candidate._outcome.record.value is None
    (shown,) = trial.result().rejected["min_chars"]
    assert shown == TriedDocument("a", "450 chars, fewer than 500", "x" * SHOWN_CHARACTERS + "…")


def test_the_tokenizer_is_named_where_it_filters() -> None:
    """Behind all steps."""
    source = make_source(replace(RECIPE, dtype="uint16", end_of_document=3), engine=tiny_bpe())
    result = tried(source, [SILENT.encode(), b"ab"])
    assert result.rejected == {NO_TOKENS: [TriedDocument("file:0", NO_TOKENS_DETAIL, SILENT)]}
    assert [one.detail for one in result.kept] == ["2 tokens"]


def test_dead_letters_are_shown_as_they_came() -> None:
    """With why they are no documents; no split that is not tried has any."""
    source = with_steps(make_source(RECIPE), [Whims("whims", 5)])
    result = tried(source, [b"\xff", b"abcdefgh", b"[]"])
    shown = {reason: [(one.place, one.text) for one in found] for reason, found in result.dead_letters.items()}
    assert shown["invalid_utf8"] == [("file:0", "\N{REPLACEMENT CHARACTER}")]
    assert shown["whim"] == [("file:1", "abcdefgh")]
    assert all(one.detail for found in result.dead_letters.values() for one in found)


@pytest.mark.slow
def test_kernels_and_plain_steps_give_one_result() -> None:
    """But for the time: the same figures, the same examples with the same numbers."""
    pytest.importorskip("spacy")
    recipe = replace(
        RECIPE,
        pipeline=({"name": "gopher_quality", "min_doc_words": 5}, {"name": "c4_quality", "min_num_sentences": 1}),
        max_text_bytes=10_000,
    )
    found = [
        f"The cat number {n} is on the mat with that dog{'.' * (n % 3)}\nand {'#' * n}".encode() for n in range(40)
    ]
    found += [b"short", b"lorem ipsum and the cat that is with the others to be.", b"{" * 30]
    results = []
    engines: tuple[EngineName, ...] = ("auto", "tokenizers")
    for engine in engines:
        stages = open_stages(recipe, TokenizerFile(RAW_BYTES, None), engine)
        values_of = tried(Source(stages, (recipe,)), found).to_dict()
        del values_of["speeds"]
        results.append(values_of)
    assert results[0] == results[1]
    assert {"gopher_quality.gopher_short_doc", "c4_quality.lorem_ipsum"} <= results[0]["examples"]["rejected"].keys()


def test_each_stage_has_a_speed() -> None:
    """Of the text that came to it; where nothing came there is none."""
    source = with_steps(make_source(RECIPE), [Whims("whims", 5)])
    speeds = tried(source, [b"abcdef", b"abcde"]).speeds
    assert list(speeds) == ["decoding", "whims", "tokenizing"]
    assert [speed.text_bytes for speed in speeds.values()] == [11, 11, 8]
    assert all(speed.seconds > 0 for speed in speeds.values())
    assert StageSpeed(3_000_000, 1.5).to_dict() == {
        "text_bytes": 3_000_000, "seconds": 1.5, "megabytes_per_second": 2.0
    }  # fmt: skip
    assert StageSpeed(0, 1.0).megabytes_per_second is None
    assert tried(source, []).totals.figures.entered == Amount()


def test_duplicates_are_counted_and_shown_with_the_document_that_they_resemble() -> None:
    """By their numbers in the order of reading; a part that comes later knows those before."""
    words = [f"word{number}" for number in range(60)]
    whole, more = " ".join(words), " ".join([*words, "more"])
    texts = [whole, "short one", more, "short one", whole, "another text here"]
    source = make_source(replace(RECIPE, dedup={"name": "near", "version": 1}))
    with closing(Trial(source.stages, source.recipes, 5)) as trial:
        for low in (0, 2, 4):
            trial.feed([text.encode() for text in texts[low : low + 2]], [f"f:{low + at + 1}" for at in range(2)])
        found = trial.result()

    assert found.totals.filtered == {"duplicate_exact": 2, "duplicate_near": 1}
    assert found.totals.balanced
    assert [(one.place, one.detail) for one in found.rejected["duplicate_near"]] == [
        ("f:3", "resembles document 1 of those that were tried")
    ]
    exact = [one.detail for one in found.rejected["duplicate_exact"]]
    assert exact == [f"the text of document {number} of those that were tried" for number in (2, 1)]
    assert found.dropped_tokens["duplicate_near"] == len(texts[2]) + 1
