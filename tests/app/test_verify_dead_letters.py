"""What `verify` says of dead letters that are missing."""

import pytest

from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify.dead_letters import check_dead_letters
from tokenmill.app.tools.verify.result import ChainResult


@pytest.mark.parametrize(
    ("offsets", "end"), [({5}, "dead-lettered"), ({5, 9}, "(nor 1 more of the partition)"), ({7, 5, 9}, "(nor 2 more ")]
)
async def test_the_first_missing_one_is_named_and_the_others_counted(offsets: set[int], end: str) -> None:
    """Where it is the only one, nothing is said of others."""
    chain = ChainResult("raw.train", 0, "raw", (0, 10), (0, 10))
    chain.dead_letters.extend(offsets)

    differences, notes = await check_dead_letters(Settings(), "raw", [chain], None)

    assert not notes
    assert [(found.offset, found.partition) for found in differences] == [(5, 0)]
    assert end in differences[0].text
    assert "nor 0" not in differences[0].text
