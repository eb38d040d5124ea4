"""A forged message that fits its chain: every hash is right, readers take it, and only a verification finds it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.tools.verify.published import Published
from tokenmill.app.tools.verify import VerifyDifference, verify
from tokenmill.errors import DifferenceError
from tokenmill.reading import Acceptor, Taken
from tokenmill.wire.chain import roll
from tokenmill.wire.message import Message


def forged(message: Message, block_bytes: int) -> Message:
    """Return a message in place of another one, as somebody makes it who knows docs/format.md and may write."""
    tokens = (b"of nobody " * block_bytes)[: block_bytes * message.count]
    return replace(message, tokens=tokens, after=roll(message.before, tokens, message.entries)[-1])


@pytest.mark.parametrize("since", [False, True], ids=["whole", "since"])
@pytest.mark.cases(1)
def test_verify_finds_a_forged_message_that_readers_take(published: Published, tmp_path: Path, *, since: bool) -> None:
    """In the topic, by its first block, and in a store; also where an earlier verification had ended before it."""
    name, other = published.names
    honest = published.messages(name, 128)
    at = len(honest) // 2
    published.publish(other, published.messages(other, 128))
    published.publish(name, honest[:at])
    place = tmp_path / "verified.json" if since else None  # of the topics alone; a store has a file of its own
    assert verify(published.settings, since=place, processes=1).differences == []
    recipe = next(recipe for stream, recipe in published.plan.recipes.items() if stream.name == name)
    rogue = forged(honest[at], recipe.block_bytes)

    published.publish(name, [rogue])
    store = published.store({name: [*honest[:at], rogue], other: published.messages(other, 128)})
    halted = Acceptor(recipe.fingerprint, 0, recipe.block_bytes, block=rogue.first, chain=rogue.before)
    assert isinstance(halted.offer(rogue), Taken)
    with pytest.raises(DifferenceError):
        halted.offer(honest[at])

    result = verify(published.settings, store=None if since else store, since=place, processes=1)

    sides = ["topic"] if since else ["topic", "store"]
    assert [_where(found) for found in result.differences] == [(side, "different", name, rogue.first) for side in sides]
    assert any(chain.since > 0 for chain in result.chains) == since


def _where(found: VerifyDifference) -> tuple[str, str, str, int | None]:
    return found.side, found.kind, found.stream, found.block
