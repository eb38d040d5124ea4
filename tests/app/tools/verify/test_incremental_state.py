"""What a verification leaves for the next one."""

from pathlib import Path

import pytest

from tests.mills import RECIPE, make_source, text
from tokenmill.app.tools.verify.verify_bounds import (
    FORMAT,
    NOTHING,
    EarlierVerification,
    VerifiedChain,
    load_verified,
    save_verified,
)
from tokenmill.errors import InputError


def some(offset: int) -> VerifiedChain:
    """Return a place in a chain."""
    source = make_source()
    mill = source.mill()
    mill.feed([text(n, "some text") for n in range(offset)])
    carry = mill.chains[RECIPE.split].carry(offset)
    assert carry is not None
    return VerifiedChain(carry, 7)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """Carry and offset of each chain; of a store under any of its names."""
    path, saved = tmp_path / "verified.json", some(5)
    save_verified(path, tmp_path / "a" / ".." / "store", NOTHING, EarlierVerification({("raw.train", 3): saved}, {}))
    found = load_verified(path, tmp_path / "store").chains
    assert found.keys() == {("raw.train", 3)}
    value = found["raw.train", 3]
    assert (value.token_offset, value.carry.cursor, value.carry.after) == (7, saved.carry.cursor, saved.carry.after)


def test_chains_that_were_not_looked_at_keep_their_place(tmp_path: Path) -> None:
    """One stream is verified every day, another every week, with one file; what is new counts."""
    path = tmp_path / "verified.json"
    earlier = EarlierVerification({("raw.train", 0): some(5), ("raw.held", 0): some(5)}, {})
    save_verified(path, None, earlier, EarlierVerification({("raw.train", 0): some(9)}, {}))
    loaded = load_verified(path, None).chains
    assert {key: value.carry.cursor.next_offset for key, value in loaded.items()} == {
        ("raw.train", 0): 9,
        ("raw.held", 0): 5,
    }


def test_nothing_is_known_before_the_first_one(tmp_path: Path) -> None:
    """A file that is not there is no error."""
    assert load_verified(tmp_path / "verified.json", None) == NOTHING


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no JSON", "is not what a verification left"),
        ("{}", "is not what a verification left"),
        (f'{{"format": {FORMAT + 1}, "store": null, "chains": {{}}, "eras": {{}}}}', f"knows format {FORMAT}"),
        (f'{{"format": {FORMAT}, "store": "/x", "chains": {{}}, "eras": {{}}}}', "is about a verification of /x"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, why: str) -> None:
    """And left alone."""
    path = tmp_path / "verified.json"
    path.write_text(content)
    with pytest.raises(InputError, match=why):
        load_verified(path, None)
    assert path.read_text() == content
