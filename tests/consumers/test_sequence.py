"""Which blocks are which samples."""

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.consumers.sequence import Run, count, cut

runs_of_partitions = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=6).map(
    lambda spans: [Run(partition, first, first + blocks) for partition, (first, blocks) in enumerate(spans)]
)


def blocks_of(runs: list[Run]) -> list[tuple[int, int]]:
    """List every block of the runs."""
    return [(run.partition, block) for run in runs for block in range(run.first, run.stop)]


@given(runs_of_partitions, st.data())
def test_a_cut_is_a_slice_of_all_blocks(runs: list[Run], data: st.DataObject) -> None:
    """As if they were listed end to end."""
    start = data.draw(st.integers(0, count(runs)))
    stop = data.draw(st.integers(start, count(runs)))
    assert blocks_of(cut(runs, start, stop)) == blocks_of(runs)[start:stop]
