"""The order of a run, and the marks that hold a place in it."""

import asyncio
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sources import Item, Refused
from tokenmill.app.sources.items import ItemChunk, Place, Placed
from tokenmill.app.sources.reading_order import LaneState, OrderedChunk, OrderState, ReadingOrder, ShuffleBuffer
from tokenmill.app.tools.produce.run_notes import BatchMark, RunCheckpoint, decode_mark, encode_mark

sizes = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=9)
"""For each source, the number of documents in each of its chunks."""
numbers = st.integers(0, 2**53)
states = st.builds(
    OrderState,
    numbers,
    st.lists(st.builds(LaneState, numbers, st.builds(Place, numbers, numbers)), min_size=1, max_size=4).map(tuple),
)
marks = st.builds(
    BatchMark,
    st.text("0123456789abcdef", min_size=16, max_size=16),
    numbers,
    numbers,
    st.builds(RunCheckpoint, numbers, states, numbers, numbers, numbers),
)


class Chunks:
    size = 10

    def __init__(self, number: int, sizes: Sequence[int]) -> None:
        self.name = str(number)
        self._sizes = sizes

    def signature(self) -> bytes:
        return b""

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        for number in range(start.entry, len(self._sizes)):
            names = [f"{self.name}-{number}-{n}" for n in range(self._sizes[number])]
            yield ItemChunk([Item(name.encode(), name) for name in names], Place(number + 1), 1, sum(map(len, names)))
        yield ItemChunk([], Place(len(self._sizes)), self.size, 0, last=True)


def turns(sources: Sequence[Chunks], start: OrderState) -> list[OrderedChunk]:
    async def collect() -> list[OrderedChunk]:
        with ReadingOrder(sources, start) as order:
            return [turn async for turn in order.turns() if turn is not None]

    return asyncio.run(collect())


def items(found: Sequence[OrderedChunk]) -> list[Item | Refused]:
    return [item for turn in found for item in turn.chunk.items]


@given(sizes=sizes, data=st.data())
def test_the_order_goes_on_from_any_state(sizes: list[list[int]], data: st.DataObject) -> None:
    sources = [Chunks(number, chunks) for number, chunks in enumerate(sizes)]
    whole = turns(sources, OrderState.start(len(sources)))
    names = [item.text for item in items(whole) if isinstance(item, Item)]
    for number, source in enumerate(sources):
        own = [name for name in names if name.partition("-")[0] == str(number)]
        assert own == [item.text for chunk in source.chunks(Place()) for item in chunk.items if isinstance(item, Item)]
    assert len(set(names)) == len(names)
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        assert items(turns(sources, whole[at].after)) == items(whole[at + 1 :])
        assert whole[-1].bytes_read == sum(source.size for source in sources)


def test_sources_take_turns() -> None:
    sources = [Chunks(number, [1, 1] if number else [1]) for number in range(5)]
    names = [item.text for item in items(turns(sources, OrderState.start(5))) if isinstance(item, Item)]
    assert [name[:3] for name in names] == ["0-0", "1-0", "2-0", "3-0", "1-1", "2-1", "3-1", "4-0", "4-1"]


@given(mark=marks)
def test_a_mark_survives_the_wire(mark: BatchMark) -> None:
    assert decode_mark(encode_mark(mark)) == mark


@given(
    value=st.binary() | marks.map(encode_mark).map(lambda value: value[:-1]) | st.just(b"[1,2,3,4,5,[[0,0,-1]],6,7]")
)
def test_what_is_no_mark_is_none(value: bytes) -> None:
    assert decode_mark(value) is None


@given(count=st.integers(0, 30), size=st.integers(1, 10), seed=st.integers())
def test_a_shuffle_loses_nothing_and_is_the_same_again(count: int, size: int, seed: int) -> None:
    def shuffled() -> list[Placed]:
        shuffle = ShuffleBuffer(size, seed)
        return [*shuffle.released((Item(b"", ""), ("", number)) for number in range(count)), *shuffle.rest()]

    assert sorted(number for _, (_, number) in shuffled()) == list(range(count))
    assert shuffled() == shuffled()


def test_a_shuffle_changes_the_order() -> None:
    orders = set()
    for seed in (1, 2):
        shuffle = ShuffleBuffer(50, seed)
        assert list(shuffle.released((Item(b"", ""), ("", number)) for number in range(50))) == []
        orders.add(tuple(number for _, (_, number) in shuffle.rest()))
    assert len(orders) == 2
