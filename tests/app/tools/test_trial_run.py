"""Files through a recipe without Kafka: which documents, from where, up to which, and what is said of the rest."""

import asyncio
import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokenmill.app.milling.steps.pipeline import PROFILES
from tokenmill.app.settings import Settings
from tokenmill.app.sources import DocumentSource, GivenSource, Item, Reading, find_sources, shape_for
from tokenmill.app.sources.items import ItemChunk, Place
from tokenmill.app.tools import trial
from tokenmill.app.tools.trial import TrialProgress, TrialResult, TrialRun, plan_trial, trial_settings
from tokenmill.documents import Document
from tokenmill.errors import SettingsError

SHORT = ({"name": "length", "min_words": 3},)


def run_of(settings: Settings, *paths: Path, limit: int | None = None, examples: int = 100) -> TrialRun:
    """Return a run over files."""
    own = trial_settings(settings, "raw-text")
    sources = find_sources(
        [str(path) for path in paths], Reading(shape_for(own.for_topic("raw-text"), own.max_record_bytes))
    )
    return TrialRun(plan_trial(own, examples)[1], sources, lambda _: None, limit)


def tried(run: TrialRun) -> tuple[TrialResult, TrialProgress]:
    """Return what a run gives."""
    asyncio.run(run.run())
    return run.trial.result(), run.progress


def places(result: TrialResult) -> dict[str, list[str]]:
    """Return where documents come from, without the folder, by what became of them."""
    shown = {**result.rejected, **result.dead_letters, "kept": result.kept}
    return {name: [Path(one.place).name for one in found] for name, found in shown.items()}


def steps_of(name: str) -> tuple[dict[str, Any], ...]:
    """Return the steps that a profile's or step's name stands for."""
    return Settings.model_validate({"steps": name}).steps


def jsonl(path: Path, *values: Any) -> Path:
    """Write a file of lines; what is no text is written as JSON."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in values))
    return path


def test_each_document_has_file_and_line(tmp_path: Path) -> None:
    """In folders, archives and compressed files; a text is its file."""
    jsonl(tmp_path / "a.jsonl", {"text": "one two three"}, "", {"text": "one"})
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n{"content": "of three words"}\n'))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("in.csv", "text\nfour\n")
    (tmp_path / "d.txt").write_text("a text\nof four words")
    result, progress = tried(run_of(Settings(steps=SHORT), tmp_path))
    assert places(result) == {
        "length.min_words": ["a.jsonl:3", "b.jsonl.gz:1", "c.zip!in.csv:2"],
        "kept": ["a.jsonl:1", "b.jsonl.gz:2", "d.txt"],
    }
    assert result.rejected["length.min_words"][0].detail == "1 words, fewer than 3"
    assert (progress.documents, progress.sources, progress.refused) == (6, 4, 0)
    assert progress.bytes_read == progress.bytes_total > 0


def no_dogs(value: bytes) -> Document | None:
    """Decode texts; those of dogs are no documents."""
    return None if b"dog" in value else Document(json.loads(value)["text"])


no_dogs.version = "1"  # type: ignore[attr-defined]


def test_what_the_decoder_refuses_is_a_dead_letter(tmp_path: Path) -> None:
    """Counted and shown by its reason, as the mill does."""
    file = jsonl(tmp_path / "a.jsonl", {"text": "a cat"}, {"text": "a dog"})
    result, progress = tried(run_of(Settings(decode=f"{__name__}:no_dogs"), file))
    (reason,) = result.totals.dead_lettered
    assert places(result) == {reason: ["a.jsonl:2"], "kept": ["a.jsonl:1"]}
    assert result.dead_letters[reason][0].text == '{"text": "a dog"}'
    assert progress.refused == 0


def test_what_is_no_document_is_refused_as_produce_does(tmp_path: Path) -> None:
    """With its line; it never comes to the recipe."""
    file = jsonl(tmp_path / "a.jsonl", "{broken", {"text": "x" * 20}, {"text": 1}, {"text": "kept"})
    result, progress = tried(run_of(Settings(max_text_bytes=10, decode="json"), file))
    assert [Path(one.where).name for one in progress.examples] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]
    assert (progress.refused, result.records, result.totals.kept) == (3, 1, 1)


def test_a_broken_file_does_not_end_it(tmp_path: Path) -> None:
    """It is counted, and the files behind it are tried."""
    data = gzip.compress(b"".join(b'{"text": "%d"}\n' % n for n in range(5_000)))
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    jsonl(tmp_path / "b.jsonl", {"text": "two words"})
    result, progress = tried(run_of(Settings(steps=({"name": "length", "min_words": 2},)), tmp_path))
    assert places(result)["kept"] == ["b.jsonl:1"]
    assert progress.broken == 1
    assert "cannot be read to its end" in progress.examples[-1].why
    assert progress.sources == 2
    assert result.records == progress.documents > 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 100])
def test_a_limit_is_the_number_of_documents(tmp_path: Path, limit: int) -> None:
    """Whatever the parts in which they are tried."""
    files = [jsonl(tmp_path / f"{name}.jsonl", *[{"text": f"{name} {n}"} for n in range(3)]) for name in "ab"]
    result, progress = tried(run_of(Settings(), *files, limit=limit))
    assert result.records == progress.documents == min(limit, 6)


def test_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is in memory than a part and a chunk; the result is the same."""
    file = jsonl(tmp_path / "a.jsonl", *[{"text": f"{n} words"} for n in range(20)])
    whole, _ = tried(run_of(Settings(steps=SHORT), file))
    monkeypatch.setattr(trial, "PART_RECORDS", 1)
    sources = [GivenSource([Item(line, "") for line in file.read_bytes().splitlines()])]
    own = trial_settings(Settings(steps=SHORT), "raw-text")
    run = TrialRun(plan_trial(own, 3)[1], sources, lambda _: None)
    fed: list[int] = []
    feed = run.trial.feed

    def noted(values: Sequence[bytes], places: Sequence[str]) -> None:
        fed.append(len(values))
        feed(values, places)

    monkeypatch.setattr(run.trial, "feed", noted)
    asyncio.run(run.run())
    assert max(fed) == 1
    assert run.trial.result().totals.pack() == whole.totals.pack()


def test_lines_are_counted_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without a document as well."""
    lines = [{"text": f"{n}"} if n % 3 else "{broken" for n in range(1, 10_001)]
    run = run_of(Settings(), jsonl(tmp_path / "a.jsonl", *lines))
    found: list[tuple[bytes, str]] = []
    monkeypatch.setattr(run.trial, "feed", lambda values, places: found.extend(zip(values, places, strict=True)))
    asyncio.run(run.run())
    numbers = [n for n in range(1, 10_001) if n % 3]
    assert [place for _, place in found] == [f"{tmp_path}/a.jsonl:{n}" for n in numbers]
    assert [json.loads(value)["text"] for value, _ in found] == [f"{n}" for n in numbers]
    assert run.progress.refused == 10_000 - len(numbers)


class _Failing:
    name = "failing"
    size = 0

    def signature(self) -> bytes:
        """Return nothing."""
        return b""

    def chunks(self, start: Place) -> Any:
        """Yield a document, then fail."""
        yield ItemChunk([Item(b"a text", "a text")], start, 0, 6)
        raise ValueError("a fault of a reader")


def test_a_fault_of_a_reader_is_raised() -> None:
    """Nothing that was not read is passed over in silence."""
    sources: Sequence[DocumentSource] = [_Failing()]
    run = TrialRun(plan_trial(trial_settings(Settings(), "raw-text"), 1)[1], sources, lambda _: None)
    with pytest.raises(ValueError, match="a fault of a reader"):
        asyncio.run(run.run())


def test_cancelled_it_has_whole_parts(tmp_path: Path) -> None:
    """Each document that was read is in the figures, once."""
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
    """With a profile's steps in place of its own; without a tokenizer, tokens are bytes."""
    settings = Settings(raw_topics=("a", "b"), topic={"b": {"min_chars": 7, "steps": ["replace_pii"]}}, splits={"x": 1})
    own = trial_settings(settings, "b")
    assert (own.raw_topics, own.min_chars, own.tokenizer, own.splits) == (("b",), 7, "bytes", {"x": 1})
    assert own.steps == steps_of("replace_pii")
    assert trial_settings(settings, "b", "c4").steps == steps_of("c4")
    assert trial_settings(Settings(tokenizer="a/b"), "raw-text").tokenizer == "a/b"
    assert plan_trial(own, 1)[0].recipes.keys() == set(own.streams())


def test_wrong_settings_are_named() -> None:
    """With what there is."""
    for arguments, words in {
        ("other", None): r"other is not in raw_topics \(raw-text\)",
        ("raw-text", "fineweb"): rf"no such profile \(did you mean .*\?\); there are {', '.join(PROFILES)}",
    }.items():
        with pytest.raises(SettingsError, match=words):
            trial_settings(Settings(), *arguments)
    with pytest.raises(SettingsError, match='decode = "avro"'):
        trial_settings(Settings(decode="avro", schema_registry_url="http://localhost:1"), "raw-text")
