"""A fast engine that is wrong about some texts: the partition stops there, and what was published is found wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Configured
from tests.faults.lying_engine import LIE
from tests.faults.oracle import judge
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, Service, send
from tokenmill.app.milling.tokenizers import load_tokenizer, open_fast
from tokenmill.app.milling.tokenizers.checked import sampled
from tokenmill.app.settings import Settings
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.app.tools.verify import verify
from tokenmill.errors import EngineError

pytestmark = pytest.mark.fault("engine-differs")

TRUTHS = [f"document {number} tells of the mill and its wheel" for number in range(60)]
LIES = [f"{LIE} {number} tells of the mill and its {number * 7919} wheels" for number in range(60_000)]


@pytest.fixture
def settings(configured: Configured, tmp_path: Path) -> Settings:
    """Return settings under which workers, and this process, have an engine that lies."""
    train_tokenizer([*TRUTHS, *LIES[:100]], vocabulary_size=400).save(str(tmp_path / "tokenizer.json"))
    return configured(
        2,
        tokenizer=str(tmp_path / "tokenizer.json"),
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


def test_difference_stops_its_partition_before_anything_of_the_batch_is_published(
    settings: Settings, caught: list[str], tmp_path: Path, trial: Trial
) -> None:
    """The other partition goes on, a new worker stops at the same place, and `tokenizers` takes the stream on."""
    send(settings, _raw([*TRUTHS, *LIES[:20], caught[0], *TRUTHS], 0))
    send(settings, _raw(TRUTHS, 1))
    for _ in range(2):
        with Service(settings, tmp_path) as service:
            (mill,) = service.mill()
            service.wait_until(lambda: _halted(service) and _status(service, 1).get("position") == len(TRUTHS))
            reason = str(_status(service, 0)["halted"])
            assert mill.running
        assert "in the records at offsets 0 to" in reason
        assert "by gigatoken and" in reason
        assert 'engine = "tokenizers"' in reason
        trial.fired("lies caught")
    right = settings.model_copy(update={"engine": "tokenizers"})
    with working(right) as service:
        judge(service, trial)
    trial.held("loud")


@pytest.mark.needs("minutes")
def test_wrong_blocks_that_were_published_are_found_by_verify(
    settings: Settings, caught: list[str], tmp_path: Path, trial: Trial
) -> None:
    """With the right engine, verify names the first wrong block; with the liar, the reference does, or it stops."""
    lies = [text for text in LIES[:200] if text not in caught]
    send(settings, _raw([*TRUTHS, *lies], 0))
    with Service(settings, tmp_path) as service:
        service.mill()
        service.wait_until(lambda: _status(service, 0).get("position") == len(TRUTHS) + len(lies))
        liar = verify(settings, store=None, reference=True).differences
        assert [(difference.side, difference.kind) for difference in liar] == [("reference", "different")]
        assert f"in the records at offsets 0 to {len(TRUTHS) + len(lies) - 1}, block " in liar[0].text
        send(settings, _raw([caught[0]], 0))
        service.wait_until(lambda: _halted(service))
    found = verify(settings.model_copy(update={"engine": "tokenizers"}), store=None, reference=True)
    assert not found.ok
    assert "block 0" not in str(found.differences[0])
    with pytest.raises(EngineError, match="by gigatoken and"):
        verify(settings, store=None)
    trial.fired("lies published", len(lies))
    trial.held("loud")


def _raw(texts: list[str], partition: int) -> list[Raw]:
    return [Raw(text.encode(), partition) for text in texts]


def _status(service: Service, partition: int) -> Mapping[str, Any]:
    (raw_topic,) = service.settings.raw_topics
    (mill,) = service.workers
    return mill.partitions.get(f"{raw_topic}/{partition}", {})


def _halted(service: Service) -> bool:
    return bool(_status(service, 0).get("halted"))
