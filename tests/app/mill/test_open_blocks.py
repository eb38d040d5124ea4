"""When carries hold open blocks by value: while retention may pass what they refer to, and seldom enough."""

from dataclasses import replace

from tests.mills import RECIPE, make_source, text
from tokenmill.app.mill.publisher import MOST_MESSAGES, ValueCarries
from tokenmill.app.milling.chain_mill import ChainMill
from tokenmill.records import Record

ROOM = 1 << 20


def chain_after(records: list[Record]) -> ChainMill:
    """Return a chain that has taken some records, all of which are in open blocks."""
    parameters = {"open_blocks": 4}
    source = make_source(replace(RECIPE, block_tokens=64, packing="fit", packing_parameters=parameters))
    mill = source.mill()
    mill.feed(records)
    return mill.chains["train"]


def test_one_is_due_while_the_oldest_record_is_in_danger() -> None:
    """Once, then again after some messages, or when what the last one needs is in danger as well."""
    chain, carries = chain_after([text(5, "ab"), text(9, "cd")]), ValueCarries(ROOM)
    assert not carries.is_due(chain, 0)
    carries.endangered_below = 5
    assert not carries.is_due(chain, 0)
    carries.endangered_below = 6
    assert carries.is_due(chain, 3)
    carry = chain.carry(20, by_value=True)
    assert carry is not None
    assert carries.allowed(carry)
    carries.written(carry, 3)
    assert not carries.is_due(chain, 3 + MOST_MESSAGES - 1)
    assert carries.is_due(chain, 3 + MOST_MESSAGES)
    carries.endangered_below = 20
    assert not carries.is_due(chain, 4)
    carries.endangered_below = 21
    assert carries.is_due(chain, 4)


def test_a_chain_without_open_blocks_needs_none() -> None:
    """Nor one that keeps one open block, which its carries hold anyway."""
    carries = ValueCarries(ROOM)
    carries.endangered_below = 1 << 40
    (recipe,) = make_source().recipes
    assert not carries.is_due(make_source().chain(recipe), 0)
    mill = make_source().mill()
    mill.feed([text(5, "a")])
    assert not carries.is_due(mill.chains["train"], 0)


def test_one_that_is_too_large_is_not_sent() -> None:
    """The log names the offset that retention must keep."""
    chain, carries = chain_after([text(5, "ab")]), ValueCarries(0)
    carry = chain.carry(20, by_value=True)
    assert carry is not None
    assert not carries.allowed(carry)
