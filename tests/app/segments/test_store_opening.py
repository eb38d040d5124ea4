"""Where a new store begins when the token topic no longer holds the first blocks."""

import pytest
from aiokafka import TopicPartition

from tests.conftest import TopicFactory
from tests.milled import Milled, publish
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_log import IgnoreList
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.segments.store_opening import late_start
from tokenmill.store import Start

CASES = {
    "the border is not there yet": ([(5, 9), (9, 15)], None),
    "a message ends at it": ([(5, 9), (9, 16)], 16),
    "in the middle of a message": ([(5, 9), (9, 20)], 16),
    "the first message begins at it": ([(16, 18)], 16),
    "blocks that came twice": ([(5, 9), (5, 9), (7, 12), (12, 18)], 16),
    "a zombie's last words before a gap": ([(2, 4), (17, 20), (20, 40)], 32),
    "nothing": ([], None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.cases(3)
async def test_a_store_begins_at_the_first_border_that_is_retained(
    milled: Milled, topic: TopicFactory, case: str
) -> None:
    """A multiple of the segments' length, with the chain hash before it."""
    spans, border = CASES[case]
    name, chain = topic(), milled.chains[milled.train, 0]
    (recipe,) = (r for s, r in plan_topic(milled.settings, milled.raw_topic).recipes.items() if s.name == milled.train)
    for first, end in spans:
        publish(milled.settings, name, recipe.fingerprint, chain[first:end], chain[first - 1].chain)
    async with consumer(milled.settings) as client:
        found = await late_start(client, TopicPartition(name, 0), recipe, 16, IgnoreList())
    assert found == (None if border is None else Start(border, chain[border - 1].chain))
