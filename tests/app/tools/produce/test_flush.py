"""A flush is asked for where it does something, and refused by name where it would be a tombstone."""

from pathlib import Path

import pytest

from tests.app.commands import invoke
from tests.app.tools.verify.published import settle_streams
from tests.conftest import TopicFactory
from tests.service import in_own_loop, raw_records
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.produce.producing import flush
from tokenmill.documents import is_flush
from tokenmill.errors import SettingsError


def settled_with(settings: Settings, *, allow_flush: bool, suffix: str = "") -> None:
    """Settle the topic's streams."""
    settings = settings.model_copy(update={"allow_flush": allow_flush, "stream_suffix": suffix})
    in_own_loop(lambda: ensure_topics(settings))
    settle_streams(settings)


def test_a_flush_that_would_be_a_tombstone_is_refused(broker: Broker, topic: TopicFactory) -> None:
    """By the settings; and by what the streams were settled with, whatever the settings here say, as long as all do."""
    raw = topic()
    settings = Settings(
        bootstrap_servers=broker.bootstrap_servers, raw_topics=(raw,), tokenizer="bytes", splits={"train": 1000}
    )
    refusing = settings.model_copy(update={"topic": {raw: {"allow_flush": False}}})
    with pytest.raises(SettingsError, match=f"allow_flush = false for {raw}"):
        in_own_loop(lambda: flush(refusing, raw))
    settled_with(settings, allow_flush=False)
    elsewhere = settings.model_copy(update={"raw_topics": ("another-topic",)})
    with pytest.raises(SettingsError, match=f"the streams of {raw} were settled with allow_flush = false"):
        in_own_loop(lambda: flush(elsewhere, raw))
    assert raw_records(settings, raw) == [[]]

    settled_with(settings, allow_flush=True, suffix="-v2")

    assert in_own_loop(lambda: flush(elsewhere, raw)) == 1
    ((record,),) = raw_records(settings, raw)
    assert is_flush(record)


def test_produce_refuses_to_flush_before_it_sends_anything(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """What was asked for cannot be had, and the setting is named; without it the last line promises no flush."""
    raw = topic()
    (tmp_path / "a.txt").write_text("a text")
    place = ["--bootstrap-servers", broker.bootstrap_servers, "--raw-topics", raw, "--allow-flush", "false"]
    command = ["produce", raw, str(tmp_path / "a.txt"), *place]

    assert f"allow_flush = false for {raw}" in invoke(*command, "--flush", code=2).err
    assert "wait until their block is full; more text fills it" in invoke(*command, code=0).err
