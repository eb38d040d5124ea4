"""The demo's last word: what it calls good."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tokenmill.app.local.demo import _say_result, _training_line
from tokenmill.app.local.live_view import LiveView, TrainingStatus
from tokenmill.app.tools.verify import ChainResult, EraResult, VerifyDifference, VerifyResult


def chain(
    *,
    reference: int = 7,
    topic: int = 7,
    store: int = 7,
    lost: int = 0,
    differences: list[VerifyDifference] | None = None,
) -> ChainResult:
    return ChainResult(
        *("s", 0, "t", (0, 9), (0, 9)),
        reference_blocks=reference,
        topic_blocks=(0, topic),
        store_blocks=(0, store),
        topic_equal=topic,
        lost=lost,
        differences=differences or [],
    )


def told(found: ChainResult, eras: EraResult) -> tuple[bool, str]:
    output = StringIO()
    result = VerifyResult([found], found.differences, [], 1.0, eras=[eras])
    return _say_result(LiveView(Console(file=output)), 1, result), output.getvalue()


def test_all_blocks_are_good_also_while_an_era_is_on_its_way_to_the_store() -> None:
    """Eras go on while the demo verifies: one that the store does not hold yet is no fault."""
    good, line = told(chain(), EraResult("s", eras=3, store_eras=2))
    assert good
    assert "killed 1, lost 0, duplicated 0, 7 blocks equal to the reference" in line


@pytest.mark.parametrize("found", [chain(topic=6, store=6), chain(store=6)])
def test_a_block_that_is_nowhere_or_not_in_the_store_counts_as_lost(found: ChainResult) -> None:
    """All had come to rest before: nothing is on its way any more."""
    good, line = told(found, EraResult("s"))
    assert not good
    assert "lost 1, " in line


def test_the_readme_shows_what_the_demo_says() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (headline,) = re.findall(r"^killed \d.*$", readme, re.MULTILINE)
    (blocks,) = re.findall(r"([\d,]+) blocks", headline)
    count = int(blocks.replace(",", ""))
    good, line = told(chain(reference=count, topic=count, store=count), EraResult("s"))
    assert good
    assert headline in line


def test_losses_are_means_over_the_first_and_the_last_steps() -> None:
    """Whatever single reports said, and whether a busy machine made many steps between two of them or one."""
    steps = [(1, 9.0), (2, 20.0), (10, 8.0), (50, 6.0), (90, 5.0), (99, 4.0), (100, 30.0)]
    reports = [TrainingStatus(step, loss, 1.0, 0.25) for step, loss in steps]
    first = (9 + 20 + 8 * 8 + 10 * 6) / 20
    last = (10 * 5 + 9 * 4 + 30) / 20
    said = "25% of its time it waited for data"
    assert _training_line(reports) == f"the model's loss went from {first:.2f} to {last:.2f} in 100 steps; {said}"
    assert _training_line(reports[:3]) == f"the model made 10 steps; {said}"


def test_nothing_at_all_is_not_good() -> None:
    assert not told(chain(reference=0, topic=0, store=0), EraResult("s"))[0]


def test_a_difference_is_not_good_and_is_told() -> None:
    different = VerifyDifference("topic", "different", "s", 0, "other ids", block=3)
    good, line = told(chain(differences=[different]), EraResult("s"))
    assert not good
    assert "topic: s partition 0, block 3: other ids" in line
