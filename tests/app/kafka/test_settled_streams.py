"""A worker with other settings than a stream's hears of these settings, before what they ask of its topics."""

from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.service import in_own_loop, service_settings
from tokenmill.app.kafka.control_topic import require_ready, settle
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.errors import FingerprintError, MissingTopicError, TopicError


def settled(settings: Settings) -> None:
    plan = plan_topic(settings, settings.raw_topics[0])
    for stream, recipe in plan.recipes.items():
        in_own_loop(lambda: settle(settings, stream, recipe, plan.tokenizer.content))  # noqa: B023 - called at once


def test_settings_go_before_limits_of_topics(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """Longer blocks and ids ask for larger messages than the stream's topics take; that is no matter of the topics."""
    settings = service_settings(broker, topic(), tmp_path)
    settled(settings)
    changed = settings.model_copy(update={"sequence_length": 100_000, "max_id_bytes": 500, "tokenizer": "missing.json"})
    with pytest.raises(FingerprintError) as caught:
        in_own_loop(lambda: require_ready(changed))
    assert "sequence_length: the stream has 63, here 100000" in str(caught.value)
    assert "max_id_bytes: the stream has 128, here 500" in str(caught.value)
    assert "max.message.bytes" not in str(caught.value)
    assert "max_text_bytes" not in str(caught.value)  # the stream has its tokenizer's, and here none is loaded yet
    assert in_own_loop(lambda: require_ready(settings)) == []


@pytest.mark.needs("minutes")
def test_limits_of_topics_are_told_where_settings_are_the_streams(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """A setting that is no part of the stream asks for more; or nobody settled it yet; or topics are missing."""
    settings = service_settings(broker, topic(), tmp_path)
    larger = settings.model_copy(update={"sequence_length": 100_000})
    with pytest.raises(TopicError, match=r"set max\.message\.bytes="):
        in_own_loop(lambda: require_ready(larger))
    settled(settings)
    with pytest.raises(TopicError, match=r"set max\.message\.bytes="):
        in_own_loop(lambda: require_ready(settings.model_copy(update={"message_bytes": 1 << 24})))
    with pytest.raises(MissingTopicError):
        in_own_loop(lambda: require_ready(settings.model_copy(update={"stream_suffix": "-other"})))
