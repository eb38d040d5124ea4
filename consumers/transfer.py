"""How token ids get from the host's memory to `x` and `y` on a device: CUDA's streams and events, behind a few calls.

What `LaneStaging` does with a lane is the same with any, so the order of the calls is tested without a GPU.

To copy rows, widen them and send them to a device takes a hundred microseconds for a batch, a part of a training step;
to look up where the next hundreds are takes milliseconds. A loop whose steps are long gets both done by another thread
meanwhile (`CopyThread`); a loop that does nothing else is faster without one.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from sys import getrefcount
from threading import Event
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from tokenmill.errors import InputError

from .sample_lookup import Rows

Mark: TypeAlias = Any
"""A point in the work that was given to a lane, as a `torch.cuda.Event`."""


class CudaLane:
    """A stream of its own on a CUDA device, whose work runs at the same time as the consumer's."""

    def __init__(self, device: torch.device) -> None:
        self.stalled_seconds = 0.0
        """How long the consumer's work waited at marks that were handed over, as far as that is known yet."""
        self._device = torch.empty(0, device=device).device  # with its number, for "cuda" is another one later
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        """Events around each wait that may not have ended yet."""

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Return page-locked memory: only from there does the device copy by itself."""
        return torch.empty((rows, columns), dtype=dtype, device="cpu", pin_memory=True)

    def on_stream(self) -> AbstractContextManager[object]:
        """Make the lane's stream the current one."""
        return torch.cuda.stream(self._stream)

    def copy(self, tokens: torch.Tensor) -> torch.Tensor:
        """Begin one copy of contiguous rows."""
        return tokens.to(self._device, non_blocking=True)

    def mark(self) -> Mark:
        """Mark what was begun on the lane's stream up to now."""
        return _record(self._stream)

    def hand_over(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream wait for the mark, not the host.

        Without `record_stream`, the memory of the tensors, of the lane's stream, would go to the next batch as soon as
        the consumer lets them go, while kernels may still have to read them.
        """
        while self._waits and self._waits[0][1].query():  # type: ignore[no-untyped-call]
            before, after = self._waits.popleft()
            self.stalled_seconds += before.elapsed_time(after) / 1e3
        current = torch.cuda.current_stream(self._device.index)
        if not mark.query():  # where all is there, events would cost the loop more than the rest
            before = _record(current, timed=True)
            mark.wait(current)
            self._waits.append((before, _record(current, timed=True)))
        for tensor in tensors:
            tensor.record_stream(current)


def _record(stream: torch.cuda.Stream, *, timed: bool = False) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


@dataclass(slots=True, eq=False)
class Staged:
    """A batch on its way: ``x = rows[:, :-1]``, ``y = rows[:, 1:]``; `Staging.deliver` says when they may be used."""

    x: torch.Tensor
    y: torch.Tensor
    mark: Mark | None = None
    """Behind which all are there; None: they are."""
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """What a model is given of them, where that was asked for."""


class End(Enum):
    """What comes behind the last batch."""

    END = 0


T = TypeVar("T")
E = TypeVar("E")

Sent: TypeAlias = Staged | Rows
"""A batch on its way; rows that go nowhere are themselves: two views of them cost as much as copying 8."""


def device_of(value: Any) -> torch.device:
    """Return a device, such as ``cuda:1``; raises InputError where it is none that this process can use."""
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"device is {value!r}: give a device of torch, such as 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device is {str(device)!r}, and torch sees no CUDA GPU here: give 'cpu', or install a driver, and a torch "
            "that is built for CUDA (nvidia-smi and torch.version.cuda tell)"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device is {str(device)!r}, and there are {torch.cuda.device_count()} GPUs: give one from 'cuda:0' to "
            f"'cuda:{torch.cuda.device_count() - 1}'"
        )
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"device is {str(device)!r}, which torch cannot use here ({reason}): give another") from error
    return device


def open_staging(
    rows: int,
    columns: int,
    dtype: "np.dtype[np.unsignedinteger]",
    device: torch.device,
    *,
    widen: bool = True,
    slots: int = 2,
) -> "Staging":
    """Open the way to a device, if need be with ``slots`` pinned buffers of ``rows`` rows.

    x and y will be int64 and contiguous; without ``widen``, of the tokens' dtype, and views of one tensor.
    """
    if device.type == "cuda":
        return LaneStaging(rows, columns, dtype, widen=widen, slots=slots, lane=CudaLane(device))
    return HostStaging(device, widen=widen)


def to_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array on a device; its memory may be shared. The host does not wait for what a GPU has to do before."""
    tensor = torch.from_numpy(values)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def next_usable(source: Iterator[T], end: E) -> T | E:
    """Return what comes next, made outside of inference mode: its tensors cannot be trained on."""
    if not torch.is_inference_mode_enabled():
        return next(source, end)
    with torch.inference_mode(mode=False):
        return next(source, end)


def begin_ahead(source: Iterator[T | None], count: int) -> Iterator[T | None]:
    """Yield what ``source`` does, which has by then begun ``count`` items more; None only where nothing is left."""
    ahead: deque[T] = deque()
    made: T | End | None = None
    while True:
        while made is not End.END and len(ahead) <= count:
            made = next_usable(source, End.END)
            if made is None:
                break
            if made is not End.END:
                ahead.append(made)
        if not ahead and made is End.END:
            return
        yield ahead.popleft() if ahead else None


class HostStaging:
    """Staging for the CPU, and for devices that share its memory: rows are widened on the host when they are sent."""

    carries = False
    """Whether batches must be delivered; else they are there when they were sent."""
    stalled_seconds = 0.0
    """How long a device's work waited because a batch was not there yet, as far as that is known."""

    def __init__(self, device: torch.device, *, widen: bool) -> None:
        self._device = device
        self._is_cpu = device.type == "cpu"
        self._widens = widen
        self._memory = ReusedMemory()

    def send(self, stretch: Rows) -> Iterator[Sent]:
        """Widen batches, ``[batches, rows, columns]``; or give views of them. They must not be written to any more."""
        if self._is_cpu and not self._widens:
            return iter(stretch)
        if self._widens:
            wide = map(Staged, self._memory.widened(stretch[..., :-1]), self._memory.widened(stretch[..., 1:]))
            return wide if self._is_cpu else map(self._moved, wide)
        return map(self._narrow, stretch)

    def complete(self, sent: Sent, make: Callable[[], None]) -> None:  # noqa: ARG002 - as of the other one
        """Have something made of a batch that was sent."""
        make()

    def deliver(self, sent: Sent) -> None:
        """Do nothing: all is there."""

    def _narrow(self, rows: Rows) -> Staged:
        tokens = torch.from_numpy(rows).to(self._device)
        return Staged(tokens[:, :-1], tokens[:, 1:])

    def _moved(self, staged: Staged) -> Staged:
        return Staged(staged.x.to(self._device), staged.y.to(self._device))


_NOBODY: Final = next(getrefcount(array) for array in [np.empty(0)])
"""References to an array that a list alone holds, and a loop over it."""


class ReusedMemory:
    """Memory of tensors of one shape, used again once nothing refers to it: new memory costs more than filling it.

    A tensor holds the array that it is over, and whatever shares its memory holds that: views, what autograd saved,
    other libraries' tensors. So the array's reference count says whether anybody can still see it.
    """

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.int64]] = []

    def widened(self, stretch: Rows) -> Iterator[torch.Tensor]:
        """Yield each batch with memory of its own: autograd would see what is done in place to one view in all."""
        arrays, shape = self._arrays, stretch.shape[1:]
        for tokens in stretch:
            for array in arrays:
                if getrefcount(array) == _NOBODY and array.shape == shape:
                    array[...] = tokens
                    break
            else:
                array = tokens.astype(np.int64)
                if arrays and arrays[0].shape != shape:
                    arrays.clear()
                arrays.append(array)
                # Those of all batches that are made of one copy; or, where batches are large, x and y of the one that
                # the loop has, of the next one, and of two that it keeps. Who holds more keeps them.
                if len(arrays) > max((32 << 20) // max(array.nbytes, 1), 8):
                    del arrays[0]
            yield torch.from_numpy(array)


class LaneStaging:
    """Staging for devices that copy by themselves (`CudaLane`).

    Tokens travel as they are on disk, each batch with one copy out of pinned memory, and are widened on the device, at
    the same time as the consumer's work. A buffer is filled again only when the last copy out of it has ended.
    """

    carries = True

    def __init__(
        self, rows: int, columns: int, dtype: "np.dtype[np.unsignedinteger]", *, widen: bool, slots: int, lane: CudaLane
    ) -> None:
        self._widens = widen
        self._lane = lane
        tokens = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[dtype.itemsize]  # torch copies and widens all three
        self._slots = [lane.pinned(rows, columns, tokens) for _ in range(slots)]
        self._rows: list[Rows] = [slot.numpy() for slot in self._slots]
        self._copied: list[Mark | None] = [None] * slots
        self._current = 0

    @property
    def stalled_seconds(self) -> float:
        """How long the device's work waited, as far as the lane knows yet."""
        return self._lane.stalled_seconds

    def send(self, stretch: Rows) -> Iterator[Sent]:
        """Send one batch after the other."""
        return map(self._send, stretch)

    def _send(self, rows: Rows) -> Staged:
        """Fill the buffer that was filled the longest time ago, and begin its copy, and what widens it there."""
        self._current = (self._current + 1) % len(self._slots)
        copied = self._copied[self._current]
        if copied is not None:
            copied.synchronize()
        self._rows[self._current][: len(rows)] = rows
        with self._lane.on_stream():
            tokens = self._lane.copy(self._slots[self._current][: len(rows)])
            self._copied[self._current] = self._lane.mark()  # before widening: that needs the buffer no more
            x, y = self._part(tokens[:, :-1]), self._part(tokens[:, 1:])
            return Staged(x, y, self._lane.mark())

    def complete(self, sent: Sent, make: Callable[[], None]) -> None:
        """Have something made of a batch that is on its way, at the same time as well."""
        if isinstance(sent, Staged):
            with self._lane.on_stream():
                make()
                sent.mark = self._lane.mark()

    def deliver(self, sent: Sent) -> None:
        """Let what the consumer begins from now on come after the copy; the host does not wait."""
        if isinstance(sent, Staged) and sent.mark is not None:
            self._lane.hand_over(sent.mark, (sent.x, sent.y, *sent.inputs.values()))

    def _part(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.to(torch.int64, memory_format=torch.contiguous_format) if self._widens else tokens


Staging: TypeAlias = HostStaging | LaneStaging

LONG_SECONDS: Final = 0.001
"""Of a step, from which on a thread is worth it: to hand something over takes up to a hundredth of it."""

Copied = TypeVar("Copied")
Made = TypeVar("Made")

_Found: TypeAlias = Iterable[Made] | End | None


class CopyThread(Generic[Copied, Made]):
    """Makes batches out of copies, one at a time, in the loop's own thread, or one ahead of it in another."""

    def __init__(self) -> None:
        self._process = -1
        """In which the thread runs: one that was forked from it has none."""
        self._pool: ThreadPoolExecutor | None = None
        self._begun: tuple[list[Made], Future[_Found[Made]]] | None = None
        """What the thread has made by now, and was not taken yet; and what comes of it."""
        self._wanted = Event()

    def batches(
        self,
        make: Callable[[Copied], Iterator[Made]],
        copies: Iterator[Copied | None],
        *,
        step_seconds: Callable[[], float],
    ) -> Iterator[Made | None]:
        """Yield what ``make`` makes of all copies; while the loop's steps are long, the next ones are made meanwhile.

        None, from ``copies`` or here: there is nothing to copy yet. What ``copies`` raises, this raises, in the loop's
        thread. One loop at a time: `settle` ends others.
        """
        while (found := self._taken(make, copies)) is not End.END:
            if found is None:
                yield None
                continue
            if (seconds := step_seconds()) > LONG_SECONDS:
                # At the beginning of a step, a loop is busy with having a device begin, and would wait for the
                # interpreter's lock, up to 5 ms each time, while the thread has it.
                self._begin(partial(_next, make, copies), min(0.25 * seconds, 0.005))
            yield from found

    def settle(self) -> None:
        """Wait for what the thread makes, and forget it: nothing is copied when this returns."""
        begun, self._begun = self._begun, None
        if begun is not None and self._process == os.getpid():
            self._wanted.set()
            wait([begun[1]])

    def end(self) -> None:
        """Let the thread end."""
        self.settle()
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown(wait=False)
        self._process = -1

    def _taken(self, make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
        begun, self._begun = self._begun, None
        if begun is None:
            return _next(make, copies)
        self._wanted.set()
        made, ended = begun
        if error := ended.exception():
            return _ended_by(made, error)
        found = ended.result()
        return _next(make, copies) if found is None else found

    def _begin(self, task: Callable[[], _Found[Made]], pause: float) -> None:
        """Have the thread do something, after a pause or when that is waited for; it ends with this object."""
        if self._pool is None or self._process != os.getpid():
            self._process, self._pool = os.getpid(), ThreadPoolExecutor(1, "copies")
        self._wanted, made = Event(), list[Made]()
        self._begun = made, self._pool.submit(_make_all, self._wanted, pause, task, made)


def _make_all(wanted: Event, pause: float, task: Callable[[], _Found[Made]], made: list[Made]) -> _Found[Made]:
    """Return what a task does, as a list that holds what was made before an error as well."""
    wanted.wait(pause)
    found = task()
    if found is None or isinstance(found, End):
        return found
    made.extend(found)
    return made


def _ended_by(made: list[Made], error: BaseException) -> Iterator[Made]:
    yield from made
    raise error


def _next(make: Callable[[Copied], Iterator[Made]], copies: Iterator[Copied | None]) -> _Found[Made]:
    copy = next(copies, End.END)
    return copy if copy is None or isinstance(copy, End) else make(copy)
