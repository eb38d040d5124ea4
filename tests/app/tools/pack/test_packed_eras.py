"""Where packed eras end: by the numbers of blocks alone, whenever they are looked at."""

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tools.pack.packed_eras import era_ends

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=5)


def eras_of(blocks: dict[int, int], era_blocks: int, stops: dict[int, int] | None = None) -> list[dict[int, int]]:
    """Return the ends of all eras, once no more blocks come."""
    stops, found = stops or dict.fromkeys(blocks, 0), []
    while (ends := era_ends(stops, blocks, era_blocks, ended=True)) is not None:
        found.append(ends)
        stops = ends
    return found


@given(counts=COUNTS, era_blocks=st.integers(1, 40), data=st.data())
def test_eras_do_not_depend_on_when_they_are_closed(counts: list[int], era_blocks: int, data: st.DataObject) -> None:
    """A run that looks again and again, and one that goes on after a kill, close what a run without a look closes."""
    blocks = dict(enumerate(counts))
    wanted = eras_of(blocks, era_blocks)
    found: list[dict[int, int]] = []
    reached = dict.fromkeys(blocks, 0)
    for _ in range(5):
        reached = {number: data.draw(st.integers(low, blocks[number])) for number, low in reached.items()}
        stops = found[-1] if found else dict.fromkeys(blocks, 0)
        while (ends := era_ends(stops, reached, era_blocks, ended=False)) is not None:
            found.append(ends)
            stops = ends
    found += eras_of(blocks, era_blocks, found[-1] if found else None)

    assert found == wanted


@given(counts=COUNTS, era_blocks=st.integers(1, 40))
def test_eras_have_all_blocks_and_enough_of_them(counts: list[int], era_blocks: int) -> None:
    """All but the last have as many as were asked for, and a step of each partition more at most."""
    found = eras_of(dict(enumerate(counts)), era_blocks)

    sizes = [sum(ends.values()) for ends in found]
    new = [size - before for before, size in zip([0, *sizes], sizes, strict=False)]
    assert sum(new) == sum(counts)
    assert all(era_blocks <= size < 2 * era_blocks + 2 * len(counts) for size in new[:-1])
    assert all(size > 0 for size in new)
