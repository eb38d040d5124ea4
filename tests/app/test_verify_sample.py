"""Which records the reference computes in a verification: the beginning, and a run in every stretch, by a seed."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tools.verify.sample import EVERY_BYTES, FIRST_BYTES, RUN_BYTES, Sampler
from tokenmill.app.tools.verify.task import Sample
from tokenmill.records import Record

VALUE = bytes(RUN_BYTES // 4)
RECORDS = [Record(offset, 0, None, VALUE) for offset in range(4 * EVERY_BYTES // len(VALUE))]


def chosen(sample: Sample, sizes: list[int], place: str = "raw/0") -> list[int]:
    """Return the offsets that are chosen of all records, which come in batches of these sizes, again and again."""
    sampler, found, at = Sampler(sample, place), list[int](), 0
    while at < len(RECORDS):
        for size in sizes:
            batch = RECORDS[at : at + size]
            low, high = sampler.choose(batch, sum(len(record.value or b"") for record in batch))
            found += [record.offset for record in batch[low:high]]
            at += size
    return found


@given(st.integers(0, 2**32), st.lists(st.integers(100, 1500), min_size=1, max_size=3))
def test_the_beginning_and_a_run_in_every_stretch_are_chosen(seed: int, sizes: list[int]) -> None:
    """Whatever comes at once: as long as said, and one in each stretch."""
    found = chosen(Sample(seed), sizes)
    first = [offset for offset in found if offset * len(VALUE) < EVERY_BYTES // 2]
    assert first == list(range(FIRST_BYTES // len(VALUE)))
    later = found[len(first) :]
    runs = [offset for offset in later if offset - 1 not in later]
    assert 2 <= len(runs) <= 4
    assert all(after - before <= 2 * EVERY_BYTES // len(VALUE) for before, after in pairwise([0, *runs]))
    assert len(later) <= len(runs) * (RUN_BYTES // len(VALUE) + 1)


def test_the_seed_decides_and_each_partition_has_places_of_its_own() -> None:
    """The same again for the same seed; else elsewhere."""
    found = chosen(Sample(5), [1000])
    assert chosen(Sample(5), [1000]) == found
    assert chosen(Sample(6), [1000]) != found
    assert chosen(Sample(5), [1000], "raw/1") != found


def test_everything_is_everything() -> None:
    """Each record of each batch."""
    assert chosen(Sample(5, everything=True), [777]) == [record.offset for record in RECORDS]
