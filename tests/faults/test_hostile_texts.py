"""No text takes a gigabyte of a mill's memory, whatever the tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import vocabularies
from tokenmill.app.milling.steps.basic import NORMALIZED_TOO_LARGE
from tokenmill.app.milling.tokenizers import RAW_BYTES

ROOT = Path(__file__).parents[2]
MOST_MIB = 960
"""A gigabyte, less what a worker has beside its mill, some 60 MiB: Faust, clients of Kafka, messages on their way."""
KINDS = {
    "bytes": None,
    "byte-level BPE": vocabularies.gpt2,
    "byte-level BPE behind NFC": vocabularies.qwen25_style,
    "byte-level BPE behind NFKC": vocabularies.claude,
    "Tekken": vocabularies.tekken,
    "SentencePiece BPE": vocabularies.mistral_sentencepiece,
    "WordPiece": vocabularies.wordpiece,
    "Unigram behind NFKC": vocabularies.unigram,
}


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("normalize", ["none", "NFKC", "NFD"])
@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_texts_take_less_than_a_gigabyte(kind: str, engine: str, normalize: str, tmp_path: Path) -> None:
    """Each as long as its limit allows; what normalizing makes too long is a dead letter, and nothing else is."""
    content = KINDS[kind]
    name = RAW_BYTES
    if content is not None:
        file = tmp_path / "tokenizer.json"
        file.write_bytes(content())
        name = str(file)
    command = [sys.executable, "-m", "tests.faults.hostile_texts", name, engine, normalize]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    printed = subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    first, *found = map(json.loads, printed.splitlines())
    assert found[-1]["peak"] < MOST_MIB, printed
    assert {line["reason"] for line in found} <= {"", "too_large", NORMALIZED_TOO_LARGE}, printed
    assert engine == "auto" or first["engine"] in {"tokenizers", RAW_BYTES}
