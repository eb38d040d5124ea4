"""``tokenmill try``: what it prints, and how it ends."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.app.commands import invoke
from tokenmill.app.cli import output, trying
from tokenmill.app.milling.steps.pipeline import PROFILES
from tokenmill.app.tools.trial import TrialProgress
from tokenmill.errors import InputError, SettingsError

NASTY = "\x1b[31mred"
STEPS = json.dumps([{"name": "length", "min_words": 3}, {"name": "replace_pii"}])


pytestmark = pytest.mark.usefixtures("nothing_around")
run = partial(invoke, "try")


def lines_of(name: str, *texts: str) -> None:
    Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_funnel_lengths_speeds_and_examples_are_shown() -> None:
    lines_of("a.jsonl", "short", f"{NASTY} hair", "write to me@company.com please", "a text of five words")
    code, out, err = run("a.jsonl", "--steps", STEPS, "--all")
    assert code == 0
    assert err == "tokenmill: tokens are bytes; for those of a tokenizer: --tokenizer\n"
    lines = out.splitlines()
    assert lines[0].startswith("4 documents of 1 file, ")
    assert "Data retention: 50.0 % (2 of 4 documents)" in lines
    rows = [line.split() for line in lines]
    dropped = len("short") + len(NASTY) + 5
    assert ["length", "length.min_words", "2", "50.0%", str(dropped), str(dropped + 2)] in rows
    assert next(row for row in rows if row[:1] == ["replace_pii"])[-1] == "1"
    at = lines.index("length.min_words: 2 that it drops")
    first, second = "  a.jsonl:1  1 words, fewer than 3", "  a.jsonl:2  2 words, fewer than 3"
    assert lines[at + 1 : at + 5] == [first, "    short", second, "    \\x1b[31mred hair"]
    at = lines.index("replace_pii: 1 that it changes")
    changed = ["    - write to me@company.com please", "    + write to email@example.com please"]
    assert lines[at + 1 : at + 4] == ["  a.jsonl:3", *changed]
    at = lines.index("kept: 2")
    assert lines[at + 3 : at + 5] == ["  a.jsonl:4  21 tokens", "    a text of five words"]
    assert any("█" in line for line in lines)

    short = run("a.jsonl", "--steps", STEPS).out.splitlines()
    assert "length.min_words: 1 of 2 that it drops" in short
    assert len(short) < len(lines) - 12  # the answer first


def test_programs_get_one_json_object() -> None:
    lines_of("a.jsonl", "short", "a text of five words")
    with Path("a.jsonl").open("a") as file:
        file.write("{broken\n")
    code, out, err = run("a.jsonl", "--steps", STEPS, "--json", "--examples", "1")
    assert code == 0
    assert "tokenmill: a.jsonl:3: malformed_json" in err
    found = json.loads(out)
    assert (found["interrupted"], found["records"], found["refused"], found["broken"]) == (False, 2, 1, 0)
    assert found["refusals"][0]["place"] == "a.jsonl:3"
    (row,) = found["retention"]["funnel"]
    assert row == {"step": "length", "reason": "length.min_words", "documents": 1, "text_bytes": 5}
    assert found["dropped_tokens"] == {"length.min_words": 6}
    assert found["splits"]["train"]["kept"] + found["splits"]["validation"]["kept"] == 1
    rejected = {"place": "a.jsonl:1", "detail": "1 words, fewer than 3", "text": "short"}
    assert found["examples"]["rejected"] == {"length.min_words": [rejected]}
    assert [len(found["examples"]["kept"]), found["examples"]["changed"]] == [1, {}]
    assert found["speeds"]["length"]["text_bytes"] == 25


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_shows_the_figures_so_far(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    for name in range(30):
        lines_of(f"{name}.jsonl", "one", "one two three")

    def press(_line: trying._TrialProgressLine, _progress: TrialProgress) -> None:
        monkeypatch.setattr(trying._TrialProgressLine, "__call__", lambda *_: None)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(trying._TrialProgressLine, "__call__", press)
    code, out, err = run(".", "--steps", STEPS)
    assert code == 128 + number
    documents = int(out.split()[0])
    assert 0 < documents <= 60
    assert f"tokenmill: interrupted: these are the figures of the first {documents} documents" in err
    assert f"length.min_words: 1 of {documents // 2} that it drops" in out or documents < 4


def test_an_empty_text_takes_no_line() -> None:
    lines_of("a.jsonl", "", "not empty")
    lines = run("a.jsonl").out.splitlines()
    at = lines.index("empty: 1 that it drops")
    assert lines[at + 1 : at + 3] == ["  a.jsonl:1", "kept: 1"]
    assert ["not_empty", "empty", "1", "50.0%", "0", "0"] in [line.split() for line in lines]


def test_a_log_hears_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PLAIN_SECONDS", 0.0)
    lines_of("a.jsonl", *["a text of some words"] * 10)
    assert "100% done" in run("a.jsonl").err
    assert run("a.jsonl", "a.jsonl", "--limit", "16").out.startswith("16 documents of 2 files, ")


def test_a_broken_archive_is_an_error_behind_the_figures() -> None:
    Path("a.zip").write_bytes(b"PK\x03\x04 and no more")
    lines_of("b.jsonl", "a text of some words")
    code, out, err = run(".")
    assert code == InputError.exit_code
    assert out.startswith("1 document of 2 files")
    assert "a.zip: " in err
    assert err.endswith("tokenmill: 1 file could not be read to the end; see above\n")


def test_wrong_arguments_are_one_line() -> None:
    Path("empty.jsonl").write_text("")
    lines_of("a.jsonl", "a text")
    for arguments, words, code in (
        (["missing.jsonl"], "missing.jsonl: there is no such file or folder", InputError.exit_code),
        (["*.parquet"], "*.parquet: matches nothing", InputError.exit_code),
        (["empty.jsonl"], "there are no documents in empty.jsonl", InputError.exit_code),
        (["a.jsonl", "--profile", "fineweb-2023"], "did you mean fineweb-2024?", SettingsError.exit_code),
        (["a.jsonl", "--steps", "gophr"], "did you mean gopher?", SettingsError.exit_code),
        (["a.jsonl", "--topic", "other"], "other is not in raw_topics", SettingsError.exit_code),
        (["a.jsonl", "--tokenizer", "missing.json"], "missing.json", SettingsError.exit_code),
    ):
        ended = run(*arguments)
        assert (ended.code, ended.out) == (code, "")
        assert words in ended.err
        assert ended.err.splitlines()[-1].startswith("tokenmill: ")
    assert run().code == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_can_be_tried(name: str) -> None:
    pytest.importorskip("spacy")
    Path("a.txt").write_text("The quick brown fox.")
    code, out, _ = run("a.txt", "--profile", name)
    assert code == 0
    assert out.startswith("1 document of 1 file")
