"""docs/settings.md says what the code says."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from docs.generators.settings_page import OUTSIDE_THE_FINGERPRINT
from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings, TopicSettings, load_settings
from tokenmill.app.tools.tokenizers import train_tokenizer

FILE: Final = Path(__file__).parents[2] / "docs" / "settings.md"
OTHER: Final[dict[str, Any]] = {
    "end_of_document": 7,
    "begin_of_document": 7,
    "template": "tokenizer",
    "padding": 7,
    "special_tokens_in_text": "tokens",
    "sequence_length": 7,
    "packing": {"name": "rows", "long": "drop"},
    "decode": "text",
    "text_fields": ("code",),
    "id_field": "key",
    "metadata_fields": ("lang",),
    "max_text_bytes": 7,
    "max_id_bytes": 7,
    "max_fields_bytes": 7,
    "normalize": "NFC",
    "min_chars": 7,
    "function": "tests.app.milling.steps.user_functions:shouted",
    "steps": "sample",
    "dedup": "near",
    "shards": 2000,  # with splits that add up to it, below
    "splits": {"train": 900, "validation": 20},
    "split_by": "content",
    "start": "2026-01-31T12:00:00Z",
    "allow_flush": False,
    "stream_suffix": "-v2",
    "segment_blocks": 7,
    "era_blocks": 7,
    "era_max_seconds": 7.0,
}
"""For each setting of a topic but the tokenizer a value that is not its default."""


def fingerprints(settings: Settings) -> set[bytes]:
    return {recipe.fingerprint for recipe in plan_topic(settings, "raw-text").recipes.values()}


def test_every_setting_stands_there_once_with_its_variable() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `TOKENMILL_(\w+)` \| [^|]+ \|", FILE.read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(Settings.model_fields)
    assert all(variable == name.upper() for name, variable in rows)


def test_every_topic_setting_is_tried_below() -> None:
    assert OTHER.keys() | {"tokenizer"} == TopicSettings.model_fields.keys()


@pytest.mark.parametrize("name", OTHER)
def test_the_page_knows_what_is_part_of_the_fingerprint(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(
        words(post_processor={"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]})
    )
    tokenizer = str(tmp_path) if name in {"template", "special_tokens_in_text"} else "bytes"
    plain = fingerprints(Settings(tokenizer=tokenizer))
    values = {name: OTHER[name]} | ({"splits": {"train": 1980, "validation": 20}} if name == "shards" else {})
    changed = fingerprints(Settings(tokenizer=tokenizer, **values))
    assert not plain & changed if name not in OUTSIDE_THE_FINGERPRINT else plain == changed
    assert re.search(rf"^\| `{name}` .*\| {'no' if plain == changed else 'yes'} \|", FILE.read_text(), re.MULTILINE)


def test_equal_shares_of_another_number_of_shards_are_other_streams() -> None:
    plain, said = Settings(tokenizer="bytes"), Settings(tokenizer="bytes", shards=1000)
    percent = Settings(tokenizer="bytes", splits={"train": 98, "validation": 2})
    assert fingerprints(plain) == fingerprints(said)
    assert not fingerprints(plain) & fingerprints(percent)


def test_the_limit_of_a_text_is_the_same_said_or_not() -> None:
    """Also where a variable says nothing, and `produce`, which loads no tokenizer, sends what any of them takes."""
    plain, said = Settings(tokenizer="bytes"), Settings(tokenizer="bytes", max_text_bytes=4 << 20)
    assert fingerprints(plain) == fingerprints(said)
    assert plain == Settings.model_validate({"tokenizer": "bytes", "max_text_bytes": ""})
    assert plain.limits == said.limits
    assert Settings.model_validate({"max_text_bytes": "2MiB"}).limits.max_text_bytes == 2 << 20


def test_the_tokenizer_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    trained = tmp_path / "tokenizer.json"
    train_tokenizer(["the mill grinds the grain " * 20], vocabulary_size=270).save(str(trained))
    assert not fingerprints(Settings(tokenizer="bytes")) & fingerprints(Settings(tokenizer=str(trained)))


def test_its_examples_are_settings(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", FILE.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        (tmp_path / "tokenmill.toml").write_text(block)
        assert load_settings(config=tmp_path / "tokenmill.toml") != Settings()
    assert len(blocks) == 6
