"""Where packed eras end: by the numbers of blocks alone, each as the whole is."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tools.pack.packed_partition import era_ends

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=5)


def eras_of(blocks: dict[int, int], era_blocks: int, stops: dict[int, int] | None = None) -> list[dict[int, int]]:
    """Return the ends of all eras."""
    stops, found = stops or dict.fromkeys(blocks, 0), []
    while (ends := era_ends(stops, blocks, era_blocks)) is not None:
        found.append(ends)
        stops = ends
    return found


@given(counts=COUNTS, era_blocks=st.integers(1, 40), kill=st.integers(0, 300))
def test_eras_do_not_depend_on_kills(counts: list[int], era_blocks: int, kill: int) -> None:
    """A call that goes on behind some of them writes the others that an undisturbed call would have written."""
    blocks = dict(enumerate(counts))
    wanted = eras_of(blocks, era_blocks)
    for written in range(min(kill, len(wanted))):
        assert wanted[written + 1 :] == eras_of(blocks, era_blocks, wanted[written])


@given(counts=COUNTS, era_blocks=st.integers(1, 40))
def test_each_era_is_as_the_whole(counts: list[int], era_blocks: int) -> None:
    """To a block of each partition; all but the last have as many blocks as were asked for, and hardly more."""
    blocks = dict(enumerate(counts))
    found = eras_of(blocks, era_blocks)

    stops = [dict.fromkeys(blocks, 0), *found]
    assert stops[-1] == blocks
    sizes = [sum(ends.values()) for ends in stops]
    for ends, size in zip(stops, sizes, strict=True):
        for number, count in blocks.items():
            assert abs(ends[number] - count * size / max(1, sum(counts))) < len(counts)
    new = [high - low for low, high in pairwise(sizes)]
    assert all(era_blocks <= size < era_blocks + len(counts) for size in new[:-1])
    assert all(size > 0 for size in new)


@given(counts=COUNTS, before=COUNTS, era_blocks=st.integers(1, 40))
def test_what_earlier_calls_closed_is_caught_up_with(counts: list[int], before: list[int], era_blocks: int) -> None:
    """Each block is in one era, and the partition of which most is in none comes first."""
    stops = {number: before[number] if number < len(before) else 0 for number in range(len(counts))}
    blocks = {number: stops[number] + count for number, count in enumerate(counts)}
    reached = stops
    for ends in eras_of(blocks, era_blocks, stops):
        new = {number for number in blocks if ends[number] > reached[number]}
        assert new
        assert all(ends[number] >= reached[number] for number in blocks)
        part = max(ends[number] / blocks[number] for number in new)
        assert all(ends[number] + 1 >= blocks[number] * part for number in blocks if number not in new)
        reached = ends
    assert reached == blocks
