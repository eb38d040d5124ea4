"""Trials: what a recipe makes of files without Kafka is what the reference counts, and what plain steps say."""

import asyncio
import gzip
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.test_columns import Whims, whims, with_steps
from tests.mills import RECIPE, SILENT, Source, make_source, tiny_bpe
from tests.strategies import feed_sizes, sources, texts, values
from tokenmill.app.funnel import (
    CUT,
    LEAD_CHARACTERS,
    SHOWN_CHARACTERS,
    EvenSample,
    TriedDocument,
    beginning_of,
    where_they_differ,
)
from tokenmill.app.milling.outcomes import NO_TOKENS, NO_TOKENS_DETAIL, Kind, Outcome
from tokenmill.app.milling.packing.document_shapes import DETAILS
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.reference import Reference
from tokenmill.app.milling.steps.pipeline import PROFILES
from tokenmill.app.milling.tokenizers import RAW_BYTES, EngineName, TokenizerFile
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, GivenSource, Item, Reading, find_sources, shape_for
from tokenmill.app.sources.items import ItemChunk, Place
from tokenmill.app.tools import trial
from tokenmill.app.tools.trial import (
    StageSpeed,
    Trial,
    TrialProgress,
    TrialResult,
    TrialRun,
    plan_trial,
    trial_settings,
)
from tokenmill.documents import Document, Record
from tokenmill.errors import SettingsError
from tokenmill.wire.totals import Amount, Totals

value_lists = st.lists(values, max_size=30)
stepped = st.builds(with_steps, sources, whims)


def tried(source: Source, found: Sequence[bytes], sizes: Sequence[int] = (), examples: int = 3) -> TrialResult:
    own, at = Trial(source.stages, source.recipes, examples), 0
    while at < len(found):
        for size in sizes or (len(found),):
            part = found[at : at + size]
            own.feed(part, [f"file:{at + number}" for number in range(len(part))])
            at += size
    result = own.result()
    assert result.records == len(found)
    return result


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_its_totals_are_the_references(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    """For any steps and splits, byte for byte: so they are those of the ledger.

    Tokens of what is dropped are counted as if each text were kept as it came to the step that filtered it out.
    """
    result = tried(source, found, sizes)
    records = [Record(offset, -1, None, value) for offset, value in enumerate(found)]
    each_step_counts = replace(source.stages, every_step_counts=True)
    for recipe in source.recipes:
        reference = Reference(recipe, each_step_counts, 0, 0)
        list(reference.blocks(records))
        assert result.splits[recipe.split].pack() == reference.totals.pack()
    assert result.totals.pack() == sum(result.splits.values(), Totals()).pack()
    dropped, owned = Counter(dict.fromkeys(result.rejected, 0)), 0
    around = len(source.recipes[0].begin_of_document) + len(source.recipes[0].after)
    for number in range(len(found)):
        outcome, passed = asked(source, found, number)
        owned += outcome.split in result.splits
        if outcome.kind is Kind.FILTERED and outcome.split in result.splits:
            length = len(source.stages.engine.encode([passed[-1].text]).ids)
            dropped[outcome.reason] += length + around if length else 0
    assert result.unowned == len(records) - owned
    assert result.dropped_tokens == dropped


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_examples_are_what_the_plain_steps_say(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    result = tried(source, found, sizes, examples=2)
    totals = result.totals
    assert list(result.rejected) == [row.reason for row in result.retention.funnel()]
    for counted, numbers in ((result.rejected, totals.filtered), (result.dead_letters, totals.dead_lettered)):
        wanted = {reason: min(2, number) for reason, number in numbers.items()}
        assert {reason: len(shown) for reason, shown in counted.items()} == wanted
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
    passed: list[Document] = []
    return source.stages.outcome(Record(number, -1, None, found[number]), (), passed), passed


def number_of(one: TriedDocument) -> int:
    return int(one.place.removeprefix("file:"))


@given(source=stepped, found=value_lists, sizes=feed_sizes)
def test_feeds_decide_nothing(*, source: Source, found: list[bytes], sizes: list[int]) -> None:
    one, other = tried(source, found).to_dict(), tried(source, found, sizes).to_dict()
    del one["speeds"], other["speeds"]
    assert one == other
    json.dumps(one)


@given(source=stepped, found=value_lists)
def test_changed_texts_are_counted_and_shown(source: Source, found: list[bytes]) -> None:
    result = tried(source, found, examples=100)
    expected: dict[str, dict[str, tuple[str, str]]] = {}
    for number in range(len(found)):
        _, passed = asked(source, found, number)
        for label, before, after in zip(source.stages.labels, passed, passed[1:], strict=False):
            if before.text != after.text:
                expected.setdefault(label, {})[f"file:{number}"] = (before.text, after.text)
    assert result.changes == {label: len(texts) for label, texts in expected.items()}
    assert {label: [(one.place, one.text, one.after) for one in shown] for label, shown in result.changed.items()} == {
        label: [(place, *where_they_differ(*change)) for place, change in changes.items()]
        for label, changes in expected.items()
    }


def test_a_large_record_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked about at once, and a beginning of it is kept: memory does not follow the input."""
    monkeypatch.setattr(trial, "HELD_BYTES", 10)
    own = Trial(make_source(replace(RECIPE, min_chars=500)).stages, [RECIPE])
    own.feed([b"x" * 450], ["a"])
    (sample,) = own._left_out.values()
    (candidate,) = sample.items()
    assert candidate._outcome.record.value is None
    (shown,) = own.result().rejected["min_chars"]
    assert shown == TriedDocument("a", "450 chars, fewer than 500", "x" * SHOWN_CHARACTERS + "…")


def test_what_the_tokenizer_filters_and_dead_letters_are_shown_as_they_came() -> None:
    source = make_source(replace(RECIPE, dtype="uint16", end_of_document=3), engine=tiny_bpe())
    result = tried(source, [SILENT.encode(), b"ab"])
    assert result.rejected == {NO_TOKENS: [TriedDocument("file:0", NO_TOKENS_DETAIL, SILENT)]}
    assert [one.detail for one in result.kept] == ["2 tokens"]
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
    quality = ({"name": "gopher_quality", "min_doc_words": 5}, {"name": "c4_quality", "min_num_sentences": 1})
    recipe = replace(RECIPE, pipeline=quality, max_text_bytes=10_000)
    found = [
        f"The cat number {n} is on the mat with that dog{'.' * (n % 3)}\nand {'#' * n}".encode() for n in range(40)
    ]
    found += [b"short", b"lorem ipsum and the cat that is with the others to be.", b"{" * 30]
    results = []
    engines: tuple[EngineName, ...] = ("auto", "tokenizers")
    for engine in engines:
        stages = open_stages(recipe, TokenizerFile(RAW_BYTES, None), engine)
        results.append(tried(Source(stages, (recipe,)), found).to_dict())
        del results[-1]["speeds"]
    assert results[0] == results[1]
    assert {"gopher_quality.gopher_short_doc", "c4_quality.lorem_ipsum"} <= results[0]["examples"]["rejected"].keys()


def test_each_stage_has_a_speed() -> None:
    source = with_steps(make_source(RECIPE), [Whims("whims", 5)])
    speeds = tried(source, [b"abcdef", b"abcde"]).speeds
    assert {name: speed.text_bytes for name, speed in speeds.items()} == {"decoding": 11, "whims": 11, "tokenizing": 8}
    assert all(speed.seconds > 0 for speed in speeds.values())
    told = StageSpeed(3_000_000, 1.5).to_dict()
    assert told == {"text_bytes": 3_000_000, "seconds": 1.5, "megabytes_per_second": 2.0}
    assert StageSpeed(0, 1.0).megabytes_per_second is None
    assert tried(source, []).totals.figures.entered == Amount()


def test_duplicates_are_counted_and_shown_with_the_document_that_they_resemble() -> None:
    words = [f"word{number}" for number in range(60)]
    whole, more = " ".join(words), " ".join([*words, "more"])
    texts = [whole, "short one", more, "short one", whole, "another text here"]
    source = make_source(replace(RECIPE, dedup={"name": "near", "version": 1}))
    with closing(Trial(source.stages, source.recipes, 5)) as own:
        for low in (0, 2, 4):
            own.feed([text.encode() for text in texts[low : low + 2]], [f"f:{low + at + 1}" for at in range(2)])
        found = own.result()
    assert (found.totals.filtered, found.totals.balanced) == ({"duplicate_exact": 2, "duplicate_near": 1}, True)
    shown = [(one.place, one.detail) for one in found.rejected["duplicate_near"]]
    assert shown == [("f:3", "resembles document 1 of those that were tried")]
    exact = [one.detail for one in found.rejected["duplicate_exact"]]
    assert exact == [f"the text of document {number} of those that were tried" for number in (2, 1)]
    assert found.dropped_tokens["duplicate_near"] == len(texts[2]) + 1


WORDS = ({"name": "length", "min_words": 3},)


def run_of(
    settings: Settings, *paths: Path, sources: Sequence[DocumentSource] = (), limit: int | None = None
) -> TrialRun:
    """Return a run over files, or other sources, that shows all documents."""
    own = trial_settings(settings, "raw-text")
    reading = Reading(shape_for(own.for_topic("raw-text"), own.max_record_bytes))
    found = sources or find_sources([str(path) for path in paths], reading)
    return TrialRun(plan_trial(own, 100)[1], found, lambda _: None, limit)


def ended(run: TrialRun) -> tuple[TrialResult, TrialProgress]:
    asyncio.run(run.run())
    return run.trial.result(), run.progress


def places(result: TrialResult) -> dict[str, list[str]]:
    shown = {**result.rejected, **result.dead_letters, "kept": result.kept}
    return {name: [Path(one.place).name for one in found] for name, found in shown.items()}


def jsonl(path: Path, *values: Any) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in values))
    return path


def test_each_document_has_file_and_line(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", {"text": "one two three"}, "", {"text": "one"})
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n{"content": "of three words"}\n'))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("in.csv", "text\nfour\n")
    (tmp_path / "d.txt").write_text("a text\nof four words")
    result, progress = ended(run_of(Settings(steps=WORDS), tmp_path))
    assert places(result) == {
        "length.min_words": ["a.jsonl:3", "b.jsonl.gz:1", "c.zip!in.csv:2"],
        "kept": ["a.jsonl:1", "b.jsonl.gz:2", "d.txt"],
    }
    assert result.rejected["length.min_words"][0].detail == "1 words, fewer than 3"
    assert (progress.documents, progress.sources, progress.refused) == (6, 4, 0)
    assert progress.bytes_read == progress.bytes_total > 0


def no_dogs(value: bytes) -> Document | None:
    return None if b"dog" in value else Document(json.loads(value)["text"])


no_dogs.version = "1"  # type: ignore[attr-defined]


def test_what_the_decoder_refuses_is_a_dead_letter_and_what_is_no_document_never_comes_to_it(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", {"text": "a cat"}, {"text": "a dog"})
    result, progress = ended(run_of(Settings(decode=f"{__name__}:no_dogs"), file))
    (reason,) = result.totals.dead_lettered
    assert places(result) == {reason: ["a.jsonl:2"], "kept": ["a.jsonl:1"]}
    assert result.dead_letters[reason][0].text == '{"text": "a dog"}'
    assert progress.refused == 0
    jsonl(file, "{broken", {"text": "x" * 20}, {"text": 1}, {"text": "kept"})
    result, progress = ended(run_of(Settings(max_text_bytes=10, decode="json"), file))
    assert [Path(one.where).name for one in progress.examples] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]
    assert (progress.refused, result.records, result.totals.kept) == (3, 1, 1)


def test_a_broken_file_does_not_end_it(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(5_000)))
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    jsonl(tmp_path / "b.jsonl", {"text": "two words"})
    result, progress = ended(run_of(Settings(steps=({"name": "length", "min_words": 2},)), tmp_path))
    assert places(result)["kept"] == ["b.jsonl:1"]
    assert progress.broken == 1
    assert "cannot be read to its end" in progress.examples[-1].why
    assert progress.sources == 2
    assert result.records == progress.documents > 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 100])
def test_a_limit_is_the_number_of_documents(tmp_path: Path, limit: int) -> None:
    files = [jsonl(tmp_path / f"{name}.jsonl", *[{"text": f"{name} {n}"} for n in range(3)]) for name in "ab"]
    result, progress = ended(run_of(Settings(), *files, limit=limit))
    assert result.records == progress.documents == min(limit, 6)


def test_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is in memory than a part and a chunk; the result is the same."""
    file, settings = jsonl(tmp_path / "a.jsonl", *[{"text": f"{n} words"} for n in range(20)]), Settings(steps=WORDS)
    whole, _ = ended(run_of(settings, file))
    monkeypatch.setattr(trial, "PART_RECORDS", 1)
    run = run_of(settings, sources=[GivenSource([Item(line, "") for line in file.read_bytes().splitlines()])])
    with mock.patch.object(run.trial, "feed", wraps=run.trial.feed) as feed:
        found, _ = ended(run)
    assert max(len(call.args[0]) for call in feed.call_args_list) == 1
    assert found.totals.pack() == whole.totals.pack()


def test_lines_are_counted_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [{"text": f"{n}"} if n % 3 else "{broken" for n in range(1, 10_001)]
    run = run_of(Settings(), jsonl(tmp_path / "a.jsonl", *lines))
    found: list[tuple[bytes, str]] = []
    monkeypatch.setattr(run.trial, "feed", lambda values, places: found.extend(zip(values, places, strict=True)))
    asyncio.run(run.run())
    numbers = [n for n in range(1, 10_001) if n % 3]
    assert [place for _, place in found] == [f"{tmp_path}/a.jsonl:{n}" for n in numbers]
    assert [json.loads(value)["text"] for value, _ in found] == [f"{n}" for n in numbers]
    assert run.progress.refused == 10_000 - len(numbers)


def test_a_fault_of_a_reader_is_raised() -> None:
    def chunks(start: Place) -> Iterator[ItemChunk]:
        yield ItemChunk([Item(b"a text", "a text")], start, 0, 6)
        raise ValueError("a fault of a reader")

    with pytest.raises(ValueError, match="a fault of a reader"):
        ended(run_of(Settings(), sources=[mock.Mock(size=0, chunks=chunks)]))


def test_cancelled_it_has_whole_parts(tmp_path: Path) -> None:
    files = [jsonl(tmp_path / f"{n}.jsonl", *[{"text": f"{n} {at}"} for at in range(10)]) for n in range(50)]
    run = run_of(Settings(), *files)

    async def interrupted() -> None:
        task = asyncio.ensure_future(run.run())
        run.report = lambda _: task.cancel()  # type: ignore[assignment]
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    run.rest()
    result = run.trial.result()
    assert 0 < result.records == run.progress.documents <= 500
    assert result.totals.balanced
    assert result.records % 10 == 0


def test_its_settings_are_those_of_one_topic() -> None:
    """With a profile's steps in place of its own; without a tokenizer, tokens are bytes; what is wrong is named."""

    def steps_of(name: str) -> tuple[dict[str, Any], ...]:
        return Settings.model_validate({"steps": name}).steps

    settings = Settings(raw_topics=("a", "b"), topic={"b": {"min_chars": 7, "steps": ["replace_pii"]}}, splits={"x": 1})
    own = trial_settings(settings, "b")
    assert (own.raw_topics, own.min_chars, own.tokenizer, own.splits) == (("b",), 7, "bytes", {"x": 1})
    assert own.steps == steps_of("replace_pii")
    assert trial_settings(settings, "b", "c4").steps == steps_of("c4")
    assert trial_settings(Settings(tokenizer="a/b"), "raw-text").tokenizer == "a/b"
    assert plan_trial(own, 1)[0].recipes.keys() == set(own.streams())
    avro = Settings(decode="avro", schema_registry_url="http://localhost:1")
    for wrong, topic, profile, words in (
        (Settings(), "other", None, r"other is not in raw_topics \(raw-text\)"),
        (Settings(), "raw-text", "fineweb", rf"no such profile \(did you mean .*\?\); there are {', '.join(PROFILES)}"),
        (avro, "raw-text", None, 'decode = "avro"'),
    ):
        with pytest.raises(SettingsError, match=words):
            trial_settings(wrong, topic, profile)


numbers = st.lists(st.integers(0, 2**63), unique=True)


@given(numbers, st.integers(0, 6), st.randoms())
def test_the_order_decides_nothing(found: list[int], size: int, chance: st.DataObject) -> None:
    one, other = EvenSample[str](size), EvenSample[str](size)
    for number in found:
        one.add(number, str(number))
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    for number in shuffled:
        if other.wants(number):
            other.add(number, str(number))
    assert one.items() == other.items() == [str(number) for number in sorted(map(int, one.items()))]
    assert len(one.items()) == min(size, len(found))


def test_every_tenth_of_the_input_has_its_share() -> None:
    sample = EvenSample[int](100)
    for number in range(10_000):
        sample.add(number, number)
    assert {number // 1000 for number in sample.items()} == set(range(10))


@given(texts)
def test_a_beginning_is_short(text: str) -> None:
    found = beginning_of(text * 50)
    assert len(found) <= SHOWN_CHARACTERS + len(CUT)
    assert (text * 50).startswith(found.removesuffix(CUT))


@given(st.text(max_size=200), st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), texts)
def test_the_first_difference_is_shown(same: str, before: str, after: str, rest: str) -> None:
    one, other = f"{same}{before}{rest}", f"{same}{after}{rest}"
    shown, changed = where_they_differ(one, other)
    assert (shown == changed) == (one == other)
    assert max(len(shown), len(changed)) <= SHOWN_CHARACTERS + 2 * len(CUT)
    if one != other and len(same) > LEAD_CHARACTERS:
        assert shown.startswith(CUT)
        assert one[len(same) - LEAD_CHARACTERS :].find(shown.strip(CUT)[LEAD_CHARACTERS:]) >= 0


def test_a_change_far_inside_is_in_sight() -> None:
    shown, changed = where_they_differ(f"{'a' * 5000} me@example.com", f"{'a' * 5000} email@example.com")
    assert shown == f"{CUT}{'a' * 59} me@example.com"
    assert changed == f"{CUT}{'a' * 59} email@example.com"
