"""Random histories of the packings that give each document blocks of its own."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import pytest

from tests.faults.trial import Trial
from tests.mills import RECIPE
from tests.simulation import history
from tests.simulation.broker import Scene, scene_of
from tests.simulation.history import Action, History, draw_plan, plan_of
from tests.simulation.test_histories import FAULTS, explored
from tests.simulation.worker import Rules
from tests.strategies import packed
from tokenmill.errors import DifferenceError

HISTORIES: Final = 40
HISTORIES_IN_FULL: Final = 20_000
PACKINGS: Final[tuple[dict[str, Any], ...]] = (
    {"packing": "rows"},
    {"packing": "rows", "packing_parameters": {"long": "split"}},
    {"packing": "rows", "packing_parameters": {"long": "split", "short": "drop"}},
    {"packing": "rows", "packing_parameters": {"long": "drop"}},
    {"packing": "chunks"},
    {"packing": "chunks", "packing_parameters": {"rest": "pad"}},
)


@cache
def packed_scene(number: int, splits: int, block_tokens: int, start: int, _: tuple[int, int] | None) -> Scene:
    """Return the scene in which the chains have the packing of this number, whatever a plan says of ``fit``."""
    fields = {"block_tokens": block_tokens} | packed(PACKINGS[number], block_tokens, {})
    return scene_of(replace(RECIPE, **fields), splits, start)


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PACKINGS)))
@pytest.mark.cases(3)
def test_every_store_gets_the_chain_of_the_log_that_stands(
    number: int, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``concat``; and messages end in the middle of a document, at which others go on."""
    monkeypatch.setattr(history, "make_scene", partial(packed_scene, number))
    rounds = trial.rounds(HISTORIES, HISTORIES_IN_FULL)
    counts = explored(trial, rounds, draw_plan)
    signs = ["second owners", "duplicates", "blocks", "carries"]
    divides = PACKINGS[number]["packing"] == "chunks" or "split" in str(PACKINGS[number])
    signs += ["within a document"] if divides else []
    signs += FAULTS if trial.full else ()
    assert not [name for name in signs if not counts[name]], counts
    trial.held("exact", "complete", "conserved", "topic", "loud", histories=rounds, blocks=counts["blocks"])


NO_BLOCK_COMES: Final = plan_of(
    16, 8,
    "produce:840470060 start:458351937 produce:328682020 mill:504149687 mill:950687733 mill:0 tokens_recreated:0",
    "land:693071351",
)  # fmt: skip
"""The token topic is made again, and of no document after that comes a block: its writer has nothing to send there."""


@pytest.mark.fault("simulated")
def test_a_writer_without_blocks_notices_a_topic_that_was_made_again(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the carry that it sends after a while; without one, the chain would have lost its blocks in silence."""
    monkeypatch.setattr(history, "make_scene", partial(packed_scene, 2))
    calm = History(NO_BLOCK_COMES)
    assert not calm.run()
    assert calm.counts["noticed: acknowledged"] == 1
    trial.fired("tokens recreated", calm.counts["tokens recreated"])
    assert "and nothing says why" in str(History(NO_BLOCK_COMES, Rules(carries_in_time=False)).run())
    trial.held("complete")


BOTH_LOST: Final = plan_of(
    8, 8,
    "produce:1309497 mill:395803757 produce:683682295 mill:763032220 mill:657795526 store:765627737",
    "both_tails:464447111",
)  # fmt: skip
"""A store has two blocks of a chain of which nothing is left, and all documents after that are dropped."""


@pytest.mark.fault("simulated")
def test_a_store_sees_that_its_log_was_lost_at_the_first_block_that_is_another_one(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, neither the store nor the token topic holds anything that contradicts the other."""
    monkeypatch.setattr(history, "make_scene", partial(packed_scene, 3))
    waits = History(BOTH_LOST)
    assert not waits.run()
    assert [len(store.committed) for store in waits.stores] == [2, 0]
    assert waits.counts["ahead of a rewritten chain that has no other block yet"] == 1
    short = History(replace(BOTH_LOST, actions=[*BOTH_LOST.actions, Action("produce", 4 * 5)]))
    assert not short.run()
    assert [type(store.halt) for store in short.stores] == [DifferenceError, type(None)]
    trial.fired("both tails", waits.counts["both tails"])
    trial.held("loud")
