"""Tokenizer engines: one that is wrong about some texts is found out, and no text takes a gigabyte of memory."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import vocabularies
from tests.faults.conftest import Configured
from tests.faults.lying_engine import LIE
from tests.faults.oracle import judge
from tests.faults.serving import working
from tests.faults.trial import Trial
from tests.service import Raw, Service, send
from tokenmill.app.milling.steps.basic import NORMALIZED_TOO_LARGE
from tokenmill.app.milling.tokenizers import RAW_BYTES, load_tokenizer, open_fast
from tokenmill.app.milling.tokenizers.checked import sampled
from tokenmill.app.settings import Settings
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.app.tools.verify import verify
from tokenmill.errors import EngineError

TRUTHS = [f"document {number} tells of the mill and its wheel" for number in range(60)]
LIES = [f"{LIE} {number} tells of the mill and its {number * 7919} wheels" for number in range(60_000)]


@pytest.fixture
def settings(configured: Configured, tmp_path: Path) -> Settings:
    """Return settings under which workers, and this process, have an engine that lies."""
    tokenizer = str(tmp_path / "tokenizer.json")
    train_tokenizer([*TRUTHS, *LIES[:100]], vocabulary_size=400).save(tokenizer)
    return configured(
        2,
        tokenizer=tokenizer,
        function="tests.faults.lying_engine:unchanged",
        engine="gigatoken",
        splits={"train": 1000},
        session_timeout=2.0,
    )


@pytest.fixture
def caught(settings: Settings) -> list[str]:
    """Return the lies that are compared; all others pass."""
    content = load_tokenizer(settings.tokenizer).content
    assert content is not None
    found = [LIES[number] for number in sampled(open_fast(content).encode(LIES))]
    assert found
    return found


def raws(texts: Sequence[str], partition: int = 0) -> list[Raw]:
    return [Raw(text.encode(), partition) for text in texts]


def status(service: Service, partition: int = 0) -> Mapping[str, Any]:
    (mill,) = service.workers
    return mill.partitions.get(f"{service.settings.raw_topics[0]}/{partition}", {})


@pytest.mark.fault("engine-differs")
def test_difference_stops_its_partition_before_anything_of_the_batch_is_published(
    settings: Settings, caught: list[str], tmp_path: Path, trial: Trial
) -> None:
    """The other partition goes on, a new worker stops at the same place, and `tokenizers` takes the stream on."""
    send(settings, raws([*TRUTHS, *LIES[:20], caught[0], *TRUTHS]) + raws(TRUTHS, 1))
    for _ in range(2):
        with Service(settings, tmp_path) as service:
            (mill,) = service.mill()
            service.wait_until(
                lambda: bool(status(service).get("halted")) and status(service, 1).get("position") == len(TRUTHS)
            )
            reason = str(status(service)["halted"])
            assert mill.running
        for said in ("in the records at offsets 0 to", "by gigatoken and", 'engine = "tokenizers"'):
            assert said in reason
        trial.fired("lies caught")
    right = settings.model_copy(update={"engine": "tokenizers"})
    with working(right) as service:
        judge(service, trial)
    trial.held("loud")


@pytest.mark.fault("engine-differs")
@pytest.mark.needs("minutes")
def test_wrong_blocks_that_were_published_are_found_by_verify(
    settings: Settings, caught: list[str], tmp_path: Path, trial: Trial
) -> None:
    """With the right engine, verify names the first wrong block; with the liar, the reference does, or it stops."""
    lies = [text for text in LIES[:200] if text not in caught]
    send(settings, raws([*TRUTHS, *lies]))
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(lambda: status(service).get("position") == len(TRUTHS) + len(lies))
        liar = verify(settings, store=None, reference=True).differences
        assert [(difference.side, difference.kind) for difference in liar] == [("reference", "different")]
        assert f"in the records at offsets 0 to {len(TRUTHS) + len(lies) - 1}, block " in liar[0].text
        send(settings, raws(caught[:1]))
        service.wait_until(lambda: bool(status(service).get("halted")))
    found = verify(settings.model_copy(update={"engine": "tokenizers"}), store=None, reference=True)
    assert not found.ok
    assert "block 0" not in str(found.differences[0])
    with pytest.raises(EngineError, match="by gigatoken and"):
        verify(settings, store=None)
    trial.fired("lies published", len(lies))
    trial.held("loud")


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
    name, content = RAW_BYTES, KINDS[kind]
    if content is not None:
        name = str(tmp_path / "tokenizer.json")
        Path(name).write_bytes(content())
    command = [sys.executable, "-m", "tests.faults.hostile_texts", name, engine, normalize]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    printed = subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    first, *found = map(json.loads, printed.splitlines())
    assert found[-1]["peak"] < MOST_MIB, printed
    assert {line["reason"] for line in found} <= {"", "too_large", NORMALIZED_TOO_LARGE}, printed
    assert engine == "auto" or first["engine"] in {"tokenizers", RAW_BYTES}
