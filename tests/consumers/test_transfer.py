"""From token ids on the host to tensors, in the loop's thread or beside it: the same batches either way."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tokenmill.consumers.sample_lookup import Rows
from tokenmill.consumers.transfer import (
    CopyThread,
    CudaLane,
    LaneStaging,
    Mark,
    Sent,
    Staged,
    Staging,
    open_staging,
    to_device,
)

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
DEVICES = ["cpu", "late", pytest.param("cuda", marks=CUDA)]

HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda x: x,
    "a view": lambda x: x[1:, :1],
    "detached": lambda x: x.detach(),
    "its storage": lambda x: x.untyped_storage(),
    "an array": lambda x: x.numpy()[1:],
    "a buffer": lambda x: x.numpy().data,
    "a tensor of another library": lambda x: x.__dlpack__(),
    "what autograd saved": lambda x: nn.functional.embedding(x, torch.ones(200, 2, requires_grad=True)),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_is_used_again_only_when_nobody_holds_it(name: str) -> None:
    staging = open_staging(2, 9, np.dtype(np.uint8), torch.device("cpu"))
    rows = np.arange(18, dtype=np.uint8).reshape(1, 2, 9)

    def sent() -> torch.Tensor:
        (staged,) = staging.send(rows)
        assert isinstance(staged, Staged)
        assert np.array_equal(staged.x, rows[0, :, :-1])
        assert np.array_equal(staged.y, rows[0, :, 1:])
        return staged.x

    first = sent()
    place, held = first.data_ptr(), HOLDERS[name](first)
    del first
    assert place not in {sent().data_ptr() for _ in range(5)}
    del held
    assert place in {sent().data_ptr() for _ in range(5)}
    kept = [sent() for _ in range(50)]
    assert len({x.data_ptr() for x in kept}) == 50


class LateMark:
    """An event: how much of a lane's work must be done for it."""

    def __init__(self, lane: "LateLane", place: int) -> None:
        self._lane, self.place = lane, place

    def synchronize(self) -> None:
        self._lane.waited += self.place > self._lane.done
        self._lane.work(self.place)

    def wait(self, stream: object) -> None:  # noqa: ARG002 - it has one only
        """Let the consumer see what is done by then; it reads at once here."""
        self._lane.work(self.place)


class LateLane(CudaLane):
    """A device that copies as late as it may: what is written to a buffer too early is in the batch."""

    def __init__(self) -> None:
        self.stalled_seconds = 0.0  # without CUDA
        self.done = 0
        self.waited = 0
        """How often the host had to wait."""
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_on_stream = False

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((rows, columns), dtype=dtype)

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        self._is_on_stream = True
        yield
        self._is_on_stream = False

    def copy(self, tokens: torch.Tensor) -> torch.Tensor:
        assert self._is_on_stream
        assert tokens.is_contiguous()
        target = torch.full_like(tokens, 0xFFFF)
        self._copies.append((tokens, target))
        return target  # x and y will be views of it, if they are not widened

    def mark(self) -> LateMark:
        assert self._is_on_stream
        return LateMark(self, len(self._copies))

    def hand_over(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> None:  # noqa: ARG002 - it frees none
        assert not self._is_on_stream
        mark.wait(None)

    def work(self, place: int) -> None:
        for source, target in self._copies[self.done : place]:
            target.copy_(source)
        self.done = max(self.done, place)


def open_late(rows: int, columns: int, lane: LateLane | None = None) -> LaneStaging:
    late: Any = lane if lane is not None else LateLane()
    return LaneStaging(rows, columns, np.dtype("<u2"), widen=False, slots=2, lane=late)


def open_any(rows: int, columns: int, device: str, *, widen: bool = True) -> Staging:
    if device == "late":
        return open_late(rows, columns)
    return open_staging(rows, columns, np.dtype("<u2"), torch.device(device), widen=widen)


def send(staging: Staging, rows: Rows) -> Sent:
    (sent,) = staging.send(rows[None])
    return sent


def xy(sent: Sent) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(sent, Staged):
        return sent.x, sent.y
    return torch.from_numpy(sent[:, :-1]), torch.from_numpy(sent[:, 1:])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("widen", [True, False])
def test_ids_are_widened_without_a_sign_unless_they_stay_as_on_disk(dtype: str, device: str, *, widen: bool) -> None:
    top = np.iinfo(dtype).max
    rows = np.array([[0, 1, top, top - 1], [top // 2, top // 2 + 1, 7, top]], dtype)
    staging = open_staging(2, 4, rows.dtype, torch.device(device), widen=widen)
    for _ in range(5):
        staged = send(staging, rows)
        staging.deliver(staged)
        x, y = xy(staged)
        assert (x.tolist(), y.tolist()) == (rows[:, :-1].tolist(), rows[:, 1:].tolist())
        for tensor in (x, y):
            assert tensor.cpu().numpy().dtype == (np.int64 if widen else dtype)
            assert not widen or (tensor.device.type, tensor.is_contiguous()) == (device, True)


@given(st.integers(1, 9), st.integers(1, 3))
def test_batches_that_are_sent_together_are_apart(batches: int, rows: int) -> None:
    stretch = np.arange(batches * rows * 5, dtype="<u2").reshape(batches, rows, 5)
    sent = list(open_staging(rows, 5, stretch.dtype, torch.device("cpu")).send(stretch))
    first, *others = [tensor for batch in sent for tensor in xy(batch)]
    first.zero_()
    assert [tensor.tolist() for tensor in others] == [
        side.tolist() for batch in stretch for side in (batch[:, :-1], batch[:, 1:])
    ][1:]
    assert {tensor._version for tensor in others} == {0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("widen", [False, True])
def test_batches_stay_what_they_are_while_buffers_are_used_again(device: str, *, widen: bool) -> None:
    """Many more batches than buffers; those with damaged samples are smaller than these."""
    staging = open_any(3, 5, device, widen=widen)
    rows = [(np.arange(5 * size) + 100 * n).reshape(size, 5).astype("<u2") for n, size in enumerate([3, 3, 1, 2] * 5)]
    batches = [send(staging, one) for one in rows]
    for staged in batches:
        staging.deliver(staged)
    assert [[side.tolist() for side in xy(staged)] for staged in batches] == [
        [one[:, :-1].tolist(), one[:, 1:].tolist()] for one in rows
    ]


@given(st.lists(st.sampled_from(["send", "deliver"]), max_size=60))
def test_whatever_comes_when_batches_are_what_was_sent(calls: list[str]) -> None:
    staging = open_late(2, 3)
    sent: list[tuple[Sent, int]] = []
    for number, call in enumerate(calls):
        if call == "send":
            sent.append((send(staging, np.full((2, 3), number, "<u2")), number))
        elif sent:
            staged, filled = sent.pop(0)
            staging.deliver(staged)
            assert set(xy(staged)[0].flatten().tolist()) == {filled}


def test_the_host_waits_only_for_the_buffer_that_it_fills() -> None:
    lane = LateLane()
    staging = open_late(2, 3, lane)
    for number, waits in enumerate([0, 0, 1, 2]):
        send(staging, np.full((2, 3), number, "<u2"))
        assert lane.waited == waits
        assert lane.done == max(0, number - 1)


@CUDA
def test_a_batch_is_kept_until_the_consumers_work_is_done() -> None:
    """Batches that are let go while kernels still have to read them; the consumer works on a stream of its own."""
    device = torch.device("cuda")
    staging = open_staging(64, 1025, np.dtype("<u2"), device)
    consumer = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    busy = torch.randn(2048, 2048, device=device)
    sums = []
    with torch.cuda.stream(consumer):
        for number in range(50):
            staged = send(staging, np.full((64, 1025), number, "<u2"))
            staging.deliver(staged)
            for _ in range(5):
                busy = busy @ busy / 2048
            sums.append(xy(staged)[0].sum())
            del staged
    torch.cuda.synchronize()
    assert [int(found) for found in sums] == [number * 64 * 1024 for number in range(50)]
    assert staging.stalled_seconds >= 0


@CUDA
def test_handing_over_does_not_stop_the_host() -> None:
    """The consumer's stream waits, not the host: the mark may be far away."""
    device = torch.device("cuda")
    lane = CudaLane(device)
    torch.ones(1, device=device)  # a kernel that is loaded waits for the device
    with lane.on_stream():
        torch.cuda._sleep(500_000_000)  # type: ignore[no-untyped-call]
        tensor = torch.ones(1, device=device)
        mark = lane.mark()
    lane.hand_over(mark, [tensor])
    assert not mark.query()
    assert float(tensor + 1) == 2


@CUDA
def test_copies_are_made_out_of_pinned_memory_on_a_stream_of_their_own() -> None:
    device = torch.device("cuda")
    staging = open_staging(64, 1025, np.dtype("<u2"), device)
    busy = torch.randn(512, 512, device=device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for number in range(5):
            staged = send(staging, np.full((64, 1025), number, "<u2"))
            staging.deliver(staged)
            busy = busy @ busy
        torch.cuda.synchronize()
    events: Any = profile.events()
    streams = {event.name: {one.device_resource_id for one in events if one.name == event.name} for event in events}
    copies = {name: at for name, at in streams.items() if "HtoD" in name}
    assert list(copies) == ["Memcpy HtoD (Pinned -> Device)"]
    products = [at for name, at in streams.items() if "gemm" in name.lower() or "cutlass" in name.lower()]
    assert products
    assert not copies["Memcpy HtoD (Pinned -> Device)"].intersection(*products)


@CUDA
def test_the_host_does_not_wait_when_arrays_go_to_a_gpu() -> None:
    """Whatever the device has to do before: documents and masks are asked for in the middle of a step."""
    device = torch.device("cuda")
    torch.cuda._sleep(500_000_000)  # type: ignore[no-untyped-call]
    mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    mark.record()
    sent = to_device(np.arange(1 << 16), device)
    assert not mark.query()
    assert sent.tolist() == list(range(1 << 16))


Made = tuple[int, str]
"""A number, and the thread that made something of it."""


def made(copy: list[int]) -> Iterator[Made]:
    for number in copy:
        yield number, threading.current_thread().name


def always() -> float:
    return 1.0


def batches_of(copies: Iterator[list[int]], step_seconds: Callable[[], float] = always) -> Iterator[Made]:
    for batch in CopyThread[list[int], Made]().batches(made, copies, step_seconds=step_seconds):
        assert batch is not None
        yield batch


@given(copies=st.lists(st.lists(st.integers(), max_size=3), max_size=6), answers=st.lists(st.booleans(), min_size=6))
def test_the_batches_are_the_same_wherever_they_are_made(copies: list[list[int]], answers: list[bool]) -> None:
    long = iter(answers + [False] * len(copies))
    found = list(batches_of(iter(copies), lambda: float(next(long))))
    assert [number for number, _ in found] == [number for copy in copies for number in copy]


def test_long_steps_have_the_next_copy_looked_for_and_made_beside_them() -> None:
    """The first is made in the loop, for nothing is known then."""
    here, looked = threading.current_thread().name, []

    def copies() -> Iterator[list[int]]:
        for number in range(3):
            looked.append(threading.current_thread().name)
            yield [number]

    numbers, names = zip(*batches_of(copies()), strict=True)
    assert numbers == (0, 1, 2)
    for threads in (looked, names):
        assert threads[0] == here
        assert here not in threads[1:]


@pytest.mark.parametrize("where", ["looked for", "made"])
def test_what_was_made_before_an_error_comes_before_it(where: str) -> None:

    def copies() -> Iterator[list[int]]:
        yield from ([1], [2, 3])
        if where == "looked for":
            raise ValueError("damaged")
        yield [4]

    def making(copy: list[int]) -> Iterator[Made]:
        for number in [*copy, 4] if where == "made" and copy[0] == 2 else copy:
            if number == 4:
                raise ValueError("damaged")
            yield number, ""

    found: list[Made | None] = []
    with pytest.raises(ValueError, match="damaged"):
        found.extend(CopyThread[list[int], Made]().batches(making, copies(), step_seconds=always))
    assert [batch and batch[0] for batch in found] == [1, 2, 3]


def test_only_one_copy_is_made_ahead() -> None:
    """So memory is bounded, and no copy is made of what changes before it is wanted."""
    numbers = count()
    batches = batches_of([next(numbers)] for _ in range(9))
    assert next(batches)[0] == 0
    assert next(batches)[0] == 1
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert next(numbers) <= 3


def test_what_is_not_there_yet_is_looked_for_again_when_it_is_wanted() -> None:
    """The thread looked a copy earlier: only what the loop sees missing is waited for."""
    looks: list[int] = []
    asked = threading.Event()

    def copies() -> Iterator[list[int] | None]:
        yield [1]
        asked.set()
        yield None  # by the thread
        yield [2]  # by the loop
        yield None
        yield None
        yield [3]

    for batch in CopyThread[list[int], Made]().batches(made, copies(), step_seconds=always):
        assert asked.wait(10)
        looks.append(0 if batch is None else batch[0])
    assert looks == [1, 2, 0, 3]


def test_a_loop_that_was_left_is_waited_for() -> None:
    """Whoever settles may use what copies are made of: the thread does so no more, and the next loop has its own."""
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def copies() -> Iterator[list[int]]:
        yield [1]
        begun.set()
        may_end.wait(10)
        ended.append(True)
        yield [2]

    ours = CopyThread[list[int], Made]()
    left = ours.batches(made, copies(), step_seconds=always)
    next(left)
    del left
    assert begun.wait(10)
    threading.Timer(0.05, may_end.set).start()
    ours.settle()
    assert ended
    assert [batch and batch[0] for batch in ours.batches(made, iter([[5], [6]]), step_seconds=always)] == [5, 6]
