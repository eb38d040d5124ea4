"""Streams of whole documents, of rows and of chunks, milled by the service, and what the commands say of them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TopicFactory
from tests.milled import all_in_eras, records
from tests.service import Service, in_own_loop, send, service_settings
from tokenmill.app.cli import main
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.tools.inspect.record_ledger import read_ledger
from tokenmill.app.tools.verify import verify
from tokenmill.errors import FingerprintError
from tokenmill.store import open_partition

SENT = 120
SHAPES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "rows": (
        {"sequence_length": 64, "packing": {"name": "rows", "long": "split", "short": "drop"}},
        ["too_short"],
        "rows (long = split, short = drop)",
    ),
    "fit": (
        {"sequence_length": 63, "packing": {"name": "fit", "open_blocks": 4, "max_age_offsets": 50}},
        [],
        "fit (open_blocks = 4, max_age_offsets = 50)",
    ),
    "chunks": (
        {"sequence_length": 8, "packing": {"name": "chunks", "chunk_tokens": 96, "rest": "pad"}},
        [],
        "chunks (chunk_tokens = 96, rest = pad)",
    ),
}
"""Settings, the packing's filters that fire, and the packing in words."""


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("logging_restored")
def test_a_stream_of_another_packing_is_milled_and_looked_at_like_any(
    name: str, broker: Broker, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal to the reference on topic and in store; balanced; found by block; and refused to other settings."""
    shape, reasons, words = SHAPES[name]
    settings = service_settings(broker, topic(2), tmp_path, splits={"train": 1}, **shape)
    with Service(settings, tmp_path) as service:
        service.mill()
        service.segment()
        send(settings, records()[:SENT])
        chains = service.wait_until_complete()
        service.wait_until(partial(all_in_eras, settings, chains))
        service.stop()
    (stream,) = settings.streams()
    bare = Settings(bootstrap_servers=settings.bootstrap_servers, raw_topics=settings.raw_topics)

    result = verify(bare, store=settings.store, processes=1, reference=True)
    assert result.differences == []
    assert result.complete
    assert result.blocks == sum(map(len, chains.values())) > 0
    assert result.totals.balanced
    assert set(result.totals.filtered) >= set(reasons)

    ledger = in_own_loop(partial(read_ledger, bare))
    assert ledger.balanced
    (account,) = ledger.streams
    assert account.padding == account.totals.packing["padding"]
    assert (account.open_tokens == 0) == (name != "fit")
    assert account.retention.packing is not None
    assert account.totals.flushes == result.totals.flushes == 2

    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["inspect", *arguments, "--bootstrap-servers", settings.bootstrap_servers])
        assert not ended.value.code
        return capsys.readouterr().out

    assert words in shown("stream", stream.name)
    block = open_partition(settings.store, stream.name, 0).blocks - 1
    found = json.loads(shown("block", stream.name, "0", str(block), "--store", str(settings.store), "--json"))
    assert len({piece["offset"] for piece in found["pieces"]}) == 1 or name == "fit"

    other = settings.model_copy(update={"packing": "concat"})
    plan = plan_topic(other, settings.raw_topics[0])
    with pytest.raises(FingerprintError, match=rf"packing: the stream has {name} \(.*\), here concat"):
        in_own_loop(lambda: settle(other, stream, plan.recipes[stream], plan.tokenizer.content))
