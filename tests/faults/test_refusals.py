"""What a worker cannot work with: one clear line, and an exit code of its own."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from tests import commands
from tests.commands import Ended
from tests.faults.conftest import Configured
from tests.faults.test_two_at_once import settle_first
from tests.faults.trial import Trial
from tests.service import in_own_loop
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.recipe import Genesis
from tokenmill.store import Store, StreamInfo

pytestmark = pytest.mark.fault("settings-changed")


def run(role: str, settings: Settings, directory: Path, **environment: str) -> Ended:
    """Run a worker that is expected to refuse, to its end."""
    return commands.run([role], directory / f"{role}.log", {**environment, **settings.environment()}, directory)


def assert_refused(ended: Ended, code: int, words: str, trial: Trial) -> None:
    """Check the code, and that the reason is said once, without a traceback."""
    assert ended.code == code, ended.said
    assert ended.said.count(words) == 1, ended.said
    assert "Traceback" not in ended.said
    trial.fired("refused")
    trial.held("loud")


def test_unknown_setting_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A misspelt setting is named, with the one that was meant."""
    assert_refused(run("mill", configured(), tmp_path, TOKENMILL_TOKENISER="bytes"), 2, "TOKENMILL_TOKENISER", trial)


MISSING: Final[dict[str, tuple[dict[str, Any], int, str]]] = {
    "tokenizer": ({"tokenizer": ""}, 2, "no tokenizer is set: set tokenizer to"),
    "broker": ({"bootstrap_servers": "127.0.0.1:1"}, 3, "no broker answers at 127.0.0.1:1; start one with"),
    "topic": ({"raw_topics": ("nowhere",)}, 4, "topic nowhere does not exist: create it with"),
}
"""What is changed of good settings, the exit code, and what is said."""


@pytest.mark.parametrize(("role", "what"), [("mill", "tokenizer"), *product(("mill", "segment"), ("broker", "topic"))])
def test_what_is_missing_is_named(configured: Configured, tmp_path: Path, trial: Trial, role: str, what: str) -> None:
    """A tokenizer, which no mill guesses; an address where nobody answers; a topic; each with what helps."""
    changes, code, words = MISSING[what]
    settings = configured().model_copy(update=changes)
    assert_refused(run(role, settings, tmp_path), code, words, trial)


def test_changed_settings_are_refused_by_the_genesis(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """The setting that differs, and what gives the new ones a stream of their own."""
    settings = configured()
    in_own_loop(lambda: settle_first(settings))
    changed = settings.model_copy(update={"min_chars": 7})
    ended = run("mill", changed, tmp_path)
    assert_refused(ended, 5, "was settled with other settings", trial)
    assert "min_chars" in ended.said
    assert "stream_suffix" in ended.said


def test_every_setting_that_decides_tokens_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Another tokenizer, block length, split, filter or transform would be another stream: each is named."""
    # The limit of a text is set, for its default follows from the tokenizer, and would be named as well.
    settings = configured().model_copy(update={"max_text_bytes": 1 << 20})
    in_own_loop(lambda: settle_first(settings))
    train_tokenizer(["some text to learn from"], vocabulary_size=300).save(str(tmp_path / "tokenizer.json"))
    changes: dict[str, object] = {
        "tokenizer": str(tmp_path / "tokenizer.json"),
        "sequence_length": 31,
        "splits": {"train": 900, "validation": 100},
        "normalize": "NFC",
        "function": "tests.faults.lying_engine:unchanged",
        "decode": "json",
    }
    for name, value in changes.items():
        changed = settings.model_copy(update={name: value})
        error = in_own_loop(lambda: settle_first(changed))  # noqa: B023 - called at once
        assert error is not None, name
        assert "stream_suffix" in str(error)
        assert f"({name}: the stream has " in str(error)
        assert "; " not in str(error)
        trial.fired(f"{name} changed")
    trial.held("loud")


def test_store_of_another_stream_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A store that holds a stream of the same name with another fingerprint is not touched."""
    settings = configured(splits={"train": 1000})
    in_own_loop(lambda: settle_first(settings))
    (stream,) = settings.streams()
    plan = plan_topic(settings.model_copy(update={"min_chars": 7}), stream.raw_topic)
    genesis = Genesis(stream.name, plan.recipes[stream], (0,), settings.segment_blocks)
    Store.open_or_create(settings.store).add_stream(StreamInfo.from_genesis(genesis, settings.segment_blocks), None)
    assert_refused(run("segment", settings, tmp_path), 5, "holds a stream made with other settings", trial)


def test_copied_store_is_refused(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """A copy would share its consumer group with the original; the file to remove is named."""
    settings = configured()
    Store.open_or_create(tmp_path / "original")
    shutil.copytree(tmp_path / "original", settings.store)
    ended = run("segment", settings, tmp_path)
    assert_refused(ended, 6, "it gets an identity (and a consumer group) of its own", trial)
