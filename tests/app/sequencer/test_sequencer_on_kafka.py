"""Mills, a sequencer and a segment worker on a real broker: what is kept is what one order of all partitions keeps."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.sequencer.judged_order import domain_settings, feed, require_one_order
from tests.service import Service
from tokenmill.app.local.broker import Broker


@pytest.mark.parametrize("packing", ["concat", "fit"])
def test_what_is_kept_is_what_one_order_keeps(
    broker: Broker, topic: Callable[..., str], tmp_path: Path, packing: str
) -> None:
    """Of two topics with two partitions each, which two mills share."""
    settings = domain_settings(broker, topic, tmp_path, packing)
    feed(settings, random.Random(packing), 300)
    with Service(settings, tmp_path) as service:
        service.mill(2)
        service.sequencer()
        service.segment()
        require_one_order(service)
