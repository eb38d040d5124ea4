"""The skip list: a record that kills workers is dead-lettered once a person says so, and never in hindsight."""

from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.milled import Milled, all_in_eras
from tests.service import WAIT_SECONDS, Raw, Service, in_own_loop, reference_blocks, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.outcomes import SKIPPED
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.verify import verify
from tokenmill.errors import InputError, TopicError

POISON = 20


def test_a_skipped_record_no_longer_kills_workers(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A worker dies of a record, again; skipped, it is dead-lettered, its neighbours are milled, and verify agrees."""
    settings = service_settings(
        broker, topic(), tmp_path, function="tests.app.own_functions:fragile", splits={"train": 500, "validation": 500}
    )
    texts = [f"a text of some length, number {number}" for number in range(40)]
    texts[POISON] = "poison"
    send(settings, [Raw(text.encode()) for text in texts])
    with Service(settings, tmp_path) as service:
        first = service.mill()[0]
        assert first.process.wait(WAIT_SECONDS) == 13

        skipped, _ = in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, POISON))

        assert skipped == [stream.name for stream in settings.streams()]
        service.mill()
        service.segment()
        chains = service.wait_until_complete(skips=[POISON])
        service.wait_until(lambda: all_in_eras(settings, chains))
        service.stop()
    result = verify(settings, store=settings.store, processes=1)
    assert result.complete
    assert result.blocks == sum(map(len, reference_blocks(settings, [POISON]).values()))
    assert result.totals.dead_lettered == {SKIPPED: 1}


async def test_what_is_settled_is_not_skipped(milled: Milled) -> None:
    """A record that was published past, one that is not there, and a topic without streams are refused."""
    with pytest.raises(InputError, match="has published tokens of offset 5 of"):
        await skip(milled.settings, milled.raw_topic, 0, 5)
    with pytest.raises(InputError, match="holds no record at offset 5000; it reaches from 0 to"):
        await skip(milled.settings, milled.raw_topic, 0, 5000)
    with pytest.raises(InputError, match="has the partitions 0 to 1, not 2"):
        await skip(milled.settings, milled.raw_topic, 2, 5)
    with pytest.raises(TopicError, match="no stream of nothing is settled"):
        await skip(milled.settings, "nothing", 0, 0)
