"""Inquiries of a raw partition; what they ask in a service is in `tests.faults.test_duplicates`."""

import asyncio
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition

from tokenmill.app.mill import inquiry
from tokenmill.app.mill.inquiry import AskedShare, DomainLogs, Inquiry, VerdictFeed
from tokenmill.app.sequencer.domain_messages import Remembered, SignedRange
from tokenmill.app.settings import Settings


async def test_who_gives_up_a_partition_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for verdicts, what was signed is sent again; not once another worker does so."""
    monkeypatch.setattr(inquiry, "AGAIN_SECONDS", 0.05)
    settings = Settings(raw_topics=("raw",), dedup="exact")
    (domain,) = settings.domains()
    sent, again = list[object](), asyncio.Event()

    async def send(*message: object) -> int:
        sent.append(message)
        if len(sent) > 2:
            again.set()
        return len(sent)

    logs = DomainLogs(domain=domain, send=send, feed=VerdictFeed(settings))
    inquired, nothing = Inquiry(TopicPartition("raw", 0), logs, {}, lambda _: None), np.zeros((1, 1), np.uint64)
    share: Any = SignedRange((0, 0), 0, 1, Remembered(0, 0), np.zeros(1, np.int64), nothing)
    await inquired.ask(AskedShare(share, share, [share], 1))
    waits = asyncio.create_task(inquired.next())
    await again.wait()
    inquired.stop()
    waits.cancel()
    await asyncio.wait([waits], timeout=1)
    assert waits.cancelled()
