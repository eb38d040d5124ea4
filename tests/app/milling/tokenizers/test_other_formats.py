"""Tokenizers in the formats of other libraries are named, with what makes a ``tokenizer.json`` of them."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer

from tests.app.milling.tokenizers.conftest import words
from tests.vocabularies.files import data_file
from tokenmill.app.milling.tokenizers import load_tokenizer
from tokenmill.app.milling.tokenizers.other_formats import other_format
from tokenmill.errors import SettingsError

REAL = [
    ("whisper/assets/gpt2.tiktoken", "ranks of bytes, as tiktoken has them: make one .* AutoTokenizer"),
    ("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "a model of SentencePiece: make one .*"),
    ("mistral_common/data/tekken_240911.json", "Tekken, Mistral's own format: name a model on the hub"),
]
"""Files of models in use."""


def refusal(name: str | Path) -> str:
    """Return the message with which a tokenizer is refused."""
    with pytest.raises(SettingsError) as caught:
        load_tokenizer(str(name))
    assert str(caught.value).startswith(f'tokenizer = "{name}": ')
    return str(caught.value).removeprefix(f'tokenizer = "{name}": ')


@pytest.mark.parametrize(("name", "message"), REAL)
@pytest.mark.slow
def test_files_of_other_libraries_are_named(tmp_path: Path, name: str, message: str) -> None:
    """By what they hold, under whatever name they lie."""
    for place in (tmp_path / Path(name).name, tmp_path / "tokenizer.json", tmp_path / "tokenizer.model"):
        shutil.copy(data_file(name), place)
        with pytest.raises(SettingsError, match=rf"{place.name} is no tokenizer\.json; it .*{message}"):
            load_tokenizer(str(place))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"[PAD]\n[UNK]\nthe\n##s\n", "WordPiece.*BertWordPieceTokenizer"),
        ("merges.txt", b"#version: 0.2\nh e\n", "merges of a BPE.*ByteLevelBPETokenizer"),
        ("vocab.json", b'{"a": 0, "b": 1}', "ids of a vocabulary alone.*ByteLevelBPETokenizer"),
        ("tokenizer_config.json", b'{"tokenizer_class": "GPT2Tokenizer"}', "holds none: name the tokenizer.json"),
        ("config.json", b'{"model_type": "gpt2", "vocab_size": 50257}', "holds none: name the tokenizer.json"),
        ("notes.txt", b"some text", "no JSON in UTF-8: name a tokenizer.json"),
        ("model.safetensors", bytes(range(256)), "no JSON"),
        ("tokenizer.json", b"", "no JSON"),
        ("list.json", b"[1, 2]", "no object"),
        ("other.json", b'{"version": "1.0"}', "no model in it"),
    ],
)
def test_files_beside_a_tokenizer_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """Each with what to do; no error of a parser."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        load_tokenizer(str(tmp_path / name))


def test_what_is_a_tokenizer_is_none_of_these() -> None:
    """Also an old one."""
    assert other_format(words()) is None
    assert other_format(json.dumps(json.loads(words()), indent=2).encode()) is None


@pytest.mark.parametrize("there", [["tokenizer.model", "config.json"], ["tekken.json"], ["vocab.json", "merges.txt"]])
def test_a_folder_without_a_tokenizer_tells_what_it_has(tmp_path: Path, there: list[str]) -> None:
    """And what makes one of it; the hub is not asked."""
    for name in there:
        (tmp_path / name).touch()
    message = refusal(tmp_path)
    assert message.startswith(f"there is no file {tmp_path / 'tokenizer.json'}; it has {there[0]}")
    assert "AutoTokenizer.from_pretrained(FOLDER)" in message


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    """There is nothing to make one of."""
    assert refusal(tmp_path).endswith("name a folder that holds one")


@pytest.mark.parametrize("name", ["tokenizer.model", "o200k.tiktoken", "vocab.txt", "llama/tokenizer.model"])
def test_a_missing_file_of_another_format_is_no_name_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is told that there is no such file."""
    monkeypatch.chdir(tmp_path)
    assert "there is no file" in refusal(name)


def test_names_of_tiktoken_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a folder of that name."""
    monkeypatch.chdir(tmp_path)
    assert "a vocabulary of tiktoken" in refusal("cl100k_base")
    (tmp_path / "cl100k_base").mkdir()
    (tmp_path / "cl100k_base" / "tokenizer.json").write_bytes(words())
    assert load_tokenizer("cl100k_base").content == words()


def test_the_advice_on_vocabularies_and_merges_is_right(tmp_path: Path) -> None:
    """What it says makes a tokenizer."""
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(["some text, some more"], vocab_size=270, show_progress=False)
    made.save_model(str(tmp_path))
    assert "merges of a BPE" in str(other_format((tmp_path / "merges.txt").read_bytes()))
    ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).save(
        str(tmp_path / "tokenizer.json")
    )
    assert load_tokenizer(str(tmp_path)).content is not None
