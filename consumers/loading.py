"""Data sets of torch: samples by index, and batches that worker processes of its ``DataLoader`` read.

A loader, torch's or torchdata's ``StatefulDataLoader``, does not let its dataset know that a loop begins, or what the
loop got. So batches that come out of a worker tell the process that uses them, each once, when its x or y is asked for;
and workers ask where to begin through files, for those that live on from loop to loop (``persistent_workers=True``)
have an old copy of the dataset.
"""

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from stat import S_ISDIR
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, Self, SupportsIndex
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map  # as the docs of default_collate say

from tokenmill.bucket.objects import address_of
from tokenmill.errors import InputError, StoreError
from tokenmill.samples.sequence import EraOrder, Ranks, count_views
from tokenmill.samples.trainable import UNPINNED, TrainableSamples
from tokenmill.store.layout import StorePath, store_directory

from . import arguments
from .batch import Batch, BatchDocuments, ModelInputs, documents_of
from .batches import Batches
from .mixture import Mixture
from .mixture_state import told
from .sample_lookup import Chunk, RowReader
from .step_loop import StepLoop
from .text import HasTokenizer
from .waiting import OpenedStream, freeze_eras, open_trainable


class DocumentSample(NamedTuple):
    """A sample with its documents; a loader puts several together field by field, for `BatchDocuments.from_ids`."""

    x: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    document_ids: npt.NDArray[np.int64]
    """``[sequence_length]``: the number in this sample of the document of each token of x; -1: padding."""
    position_ids: npt.NDArray[np.int64]
    """``[sequence_length]``: the place of each token of x in its document's part, from 0."""
    loss_mask: npt.NDArray[np.bool_]
    """``[sequence_length]``: whether x and y are of one document, which is no padding."""


Sample = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""x and y, ``[sequence_length]`` each, int64: the next token of ``x[j]`` is ``y[j]``."""


class EraDataset(OpenedStream, Dataset[Sample]):
    """The samples of some eras, by partition, number and view, for samplers that choose an order of their own.

    What torch calls a map-style dataset (a ``DataLoader`` may copy it into workers, by fork or spawn) and Grain a
    ``RandomAccessDataSource``. It is frozen: what comes into the store later changes neither length nor samples.
    Memory and the cost of opening are bounded, however many eras there are. `Batches` is what resumes and follows.
    """

    @arguments.naming_unknown
    def __init__(
        self,
        store: StorePath,
        stream: str,
        *,
        sequence_length: int | None = None,
        eras: range | None = None,
        check: bool = True,
        documents: bool = False,
        cache: StorePath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Open the eras ``range(first, stop)``; None: all whose blocks are in the store now.

        Samples have ``sequence_length`` tokens, the stream's own if None, or a divisor of it.

        With ``documents``, each sample is a `DocumentSample`: the documents of its tokens come with it.

        With ``check``, every block is held against its CRC when it is first read in this process, and refused if it is
        damaged; else samples are whatever the files hold.

        With a bucket as ``store``, ``cache`` is a folder on a disk of this host for the segments that are read, which
        all its processes share, and ``cache_bytes`` bounds it; None: all stay.

        Raises:
            StoreError: the store holds no such stream.
            BucketError: the bucket holds no such stream, or does not answer.
            DiskError: a file may not be read, or its disk fails.
            InputError: the eras are not all there, or the length does not fit.
            DifferenceError, DamagedError: the store is not what its eras say, or damaged.
        """
        self._with_documents = arguments.flag("documents", documents)
        self._find(store, stream, eras=eras, check=check, cache=cache, cache_bytes=cache_bytes)
        length = self._info.block_tokens - 1 if sequence_length is None else sequence_length
        self._length = arguments.whole("sequence_length", length, 1, "tokens")
        self._views = count_views(self._info, self._length)
        with self._reachable:
            found = freeze_eras(self._store, self._info, eras, self._open(), from_start=True)
        self.eras = found.eras
        """The eras that these samples are from."""
        self._merged, self._content = found.merged, found.content.hash
        self._order = EraOrder(self._merged, views=self._views, shuffle=False, seed=0, passed=0)
        self._rows: RowReader | None = None

    def __len__(self) -> int:
        """Return how many samples the eras have together."""
        return self._order.samples

    def __getitem__(self, index: SupportsIndex) -> Sample:
        return self.__getitems__([arguments.index_of("the index", index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return several samples, which is cheaper than one by one.

        Raises:
            IndexError: there is no sample of that number; a loop over all ends with it.
            InputError: the indices are no whole numbers.
            StoreError: the store is not there any more.
            DamagedError: a file is damaged or cut off (with ``check``: a block).
        """
        chunk = self._chunk(indices)
        wide = chunk.rows().astype(np.int64)
        if not self._with_documents:
            return [(row[:-1], row[1:]) for row in wide]
        found = self._documents_of(chunk)
        columns = (found.document_ids.numpy(), found.position_ids.numpy(), found.loss_mask.numpy())
        samples: list[Any] = [
            DocumentSample(row[:-1], row[1:], *told) for row, *told in zip(wide, *columns, strict=True)
        ]
        return samples  # of more fields, which only those have who asked for them

    def documents(self, indices: Sequence[int]) -> BatchDocuments:
        """Return which tokens of several samples belong to which document, on the CPU; raises as ``__getitems__``."""
        return self._documents_of(self._chunk(indices))

    def _documents_of(self, chunk: Chunk) -> BatchDocuments:
        sources = partial(chunk.sources, 0, self._length)
        return documents_of(chunk.pieces(0), chunk.samples.views, self._length, torch.device("cpu"), sources=sources)

    def _chunk(self, indices: Sequence[int]) -> Chunk:
        wanted = arguments.numbers_in(indices, len(self), "samples")
        with self._reachable:
            if self._rows is None:
                self._reachable.require()
                trainable = self._open()
                trainable.is_trainable(self._merged)  # sees that the blocks are there
                self._rows = RowReader(trainable, Ranks(1), self._length, skip=False)
            return self._rows.find([(self._order, wanted)])

    def __repr__(self) -> str:
        # Grain holds a checkpoint against it, so it says what decides the samples, and nothing of this process or host.
        return (
            f"EraDataset(stream={self._info.name!r}, fingerprint={self._info.fingerprint.hex()!r}, "
            f"sequence_length={self._length}, eras={self.eras}, content={self._content!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None}  # another process maps the files again

    def _open(self) -> TrainableSamples:
        return open_trainable(self._store, self._info, self._length, self._views, check=self._check)


State = dict[str, Any]

_PLACES: Final[weakref.WeakValueDictionary[str, "LoopPlace"]] = weakref.WeakValueDictionary()
"""Those of this process, by key: batches from workers find theirs here."""

log = logging.getLogger(__name__)


class LoopPlace:
    """A state of `Batches` that moves on with the batches that are used; the copies of workers never move."""

    def __init__(self, state: State) -> None:
        self.key = uuid4().hex
        self.state = state
        self.turn = 0
        """Counts the states that were set: what was used before one says nothing of what comes after it."""
        self._loops = 0
        self._born = ""
        self._enter()

    def move(self, state: State) -> None:
        """Stand at a state that was set."""
        files = list(self._directory(os.getpid()).glob("place-*"))
        self.turn = max([self.turn, *(_read(file)[0] for file in files)]) + 1  # workers may have been told to go back
        self.state = state
        for file in files:
            file.unlink()
        self._publish(os.getpid())

    def advance(self, turn: int, state: State) -> None:
        """Stand at the state after a batch that is used, if that is further on."""
        if (turn, state["sample"]) > (self.turn, self.state["sample"]):
            self.turn, self.state = turn, state
            self._publish(os.getpid())

    def begin(self, seed: int) -> State:
        """Return where a loop begins, the same in all its workers, which share a ``seed`` that others hardly have."""
        if not self._loops:
            self._born = f"{seed}-{self.turn}-{self.state['sample']}"
        directory = self._directory(_looping())
        found = [(self.turn, self.state), *map(_read, directory.glob("place-*"))]
        proposed = _write(directory, *max(found, key=lambda one: (one[0], one[1]["sample"])))
        agreed = directory / f"loop-{self._born}-{self._loops}"
        try:
            os.link(proposed, agreed)  # the first one decides: what the others find may be of this loop already
        except FileExistsError:
            pass
        finally:
            proposed.unlink()
        self.turn, self.state = _read(agreed)
        self._loops += 1
        return self.state

    def set_in_worker(self, state: State) -> None:
        """Note, in each worker, from which state of its own a loop goes on; others hear of it as they use batches."""
        self.turn += 1
        self.state = state
        self._loops += 1
        self._publish(_looping())

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "turn": self.turn, "state": self.state, "_loops": 0, "_born": ""}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        if self.key in _PLACES:  # a copy in the same process goes its own way
            self.key = uuid4().hex
        self._enter()

    def _enter(self) -> None:
        _PLACES[self.key] = self
        weakref.finalize(self, _remove, self._directory(os.getpid()), os.getpid())

    def _publish(self, looping: int) -> None:
        directory = self._directory(looping)
        _write(directory, self.turn, self.state).replace(directory / f"place-{os.getpid()}")

    def _directory(self, process: int) -> Path:
        """Return where a process that loops and its workers meet; no name to guess, and only this user reads it.

        Raises StoreError where somebody else has made it, who would say where training goes on.
        """
        directory = Path(tempfile.gettempdir()) / f"tokenmill-{self.key}-{process}"
        with suppress(FileNotFoundError):
            status = directory.lstat()
            if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise StoreError(f"{directory} is not this user's alone: remove it, or set TMPDIR to a folder of yours")
        return directory


def note_use(key: str, turn: int, batch: Any) -> None:
    """Note that the process that loops uses a batch; nothing where it has let go of the dataset."""
    place = _PLACES.get(key)
    if place is not None:
        place.advance(turn, batch.state)


def _looping() -> int:
    found = parent_process()
    return os.getpid() if found is None or found.pid is None else found.pid


def _write(directory: Path, turn: int, state: State) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    file = directory / f"new-{os.getpid()}"
    file.write_text(json.dumps([turn, state]))
    return file


def _read(file: Path) -> tuple[int, State]:
    turn, state = json.loads(file.read_text())
    return turn, state


def _remove(directory: Path, process: int) -> None:
    if os.getpid() == process:  # a forked worker has the object, too
        shutil.rmtree(directory, ignore_errors=True)


class StepDataset(HasTokenizer, IterableDataset[Batch]):
    """The batches of `Batches`, in their order, for ``DataLoader(StepDataset(...), batch_size=None, num_workers=n)``.

    Worker i of n takes every n-th step, and the loader puts them together again, so any number of workers gives the
    same sequence. One is seldom needed: `Batches` alone reads faster than processes can hand over tensors.

    What was read ahead is no progress. ``batch.state`` is the state of `Batches` after that batch, for all ranks, and
    `resume` takes it, here and for any other number of ranks or workers. The dataset keeps its place, too: the next
    loop goes on behind the last batch that the loop got; where workers read, behind the last one whose x or y it asked
    for, for a loader keeps to itself what it handed out. `rewind` goes back to the beginning.
    """

    _opens: ClassVar[Callable[..., StepLoop]] = Batches

    def __init__(self, store: StorePath, stream: str, **options: Any) -> None:
        """Open a stream; the options are those of `Batches`, of which ``device`` and ``stop`` stay with the loop.

        Raises as in `Batches`.
        """
        self._begin(_for_workers("StepDataset", {"store": store, "stream": stream} | options))

    def _begin(self, options: dict[str, Any]) -> None:
        """Stand at the beginning of what is opened with these options; the ranks are those that are known here."""
        self._options = _with_ranks(options)
        fresh = self._fresh()
        self._tokenizer = fresh._tokenizer
        self._place = LoopPlace(fresh.state_dict())
        self._running: StepLoop | None = None
        """What the loop reads from, where it does so without workers."""
        self._turn = 0
        """That of the place when that loop began."""
        self._given: dict[str, Any] | None = None
        """In a worker: the state of its own that it was told to go on from."""
        self._worker: dict[str, Any] | None = None
        """In a worker: its own state, which only a loader with as many workers can use."""
        self._reading: StepLoop | None = None
        """In a worker: what it reads from, which knows the content of what was read."""

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"StepDataset({options}, begins at sample {self._now()['sample']})"

    def __len__(self) -> int:
        """Return the number of steps of the whole run, as ``len(Batches(...))`` does.

        Raises TypeError where the run's end is not known.
        """
        return len(self._open(self._now()))

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches, in a worker those of its steps, from where the dataset stands when this is called.

        Raises as iterating over `Batches` does, and InputError where the dataset was set to another place meanwhile.
        """
        info = get_worker_info()
        if info is None:
            self._turn, self._running = self._place.turn, self._open(self._now())
            return self._here(self._running)
        self._note()
        self._running = None
        given, self._given = self._given, None
        told = given is not None
        if given is None:
            given = {"data": self._place.begin(info.seed - info.id), "made": 0}
        parent = os.getppid()  # once it is gone, a worker that waits for eras would wait for ever
        worker = (info.id, info.num_workers)
        batches = self._open(given["data"], worker=worker, stop=lambda: os.getppid() != parent)
        if told:
            made = given["made"]  # the last of these was this worker's in its turn
            last = batches.step + info.id + (made - 1) * info.num_workers
            self._place.set_in_worker(batches.state_after(last) if made else given["data"])
        self._worker, self._reading = dict(given), batches
        return self._in_worker(batches.skip(given["made"]), self._worker)

    def state_after(self, step: int) -> State:
        """Return the state of `Batches` after a step, for `resume` and for ``Batches.load_state_dict``.

        Raises InputError where it is no number of a step, or one behind the run's end.
        """
        return self._open(self._now()).state_after(step)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Begin the next loop where a state of `Batches` stands, also in workers that live on.

        Raises InputError where it is no state, or one of another sequence of samples.
        """
        self._place.move(self._open(state).state_dict())
        self._running = self._given = self._worker = None

    def rewind(self) -> Self:
        """Begin the next loop at the beginning, as for each validation."""
        self.resume(self._fresh().state_dict())
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Batches` where this stands; in a worker, its own, as ``StatefulDataLoader`` wants it."""
        if self._worker is None or self._reading is None:
            return self._now()
        return self._worker | {"data": self._reading._with_content(self._worker["data"])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` said: as `resume`, or as the worker of the same number, of as many.

        Raises InputError where it is no such state, or one of another sequence of samples.
        """
        asked: Any = state_dict
        if not isinstance(asked, Mapping) or "made" not in asked:
            self.resume(asked)
            return
        taken = "what state_dict() of a StepDataset said, or give resume() a state of Batches"
        given = arguments.state_of(state_dict, {"data", "made"}, taken)
        made = arguments.whole("made", given["made"], 0, "items")
        state = self._open(given["data"]).state_dict()
        if made and given["data"].get("content", "of its streams") is None:
            log.warning("%s", UNPINNED)
        if get_worker_info() is None:
            raise InputError(
                "this is the state of a worker of a StatefulDataLoader: load it through one, or give resume() another"
            )
        self._given = {"data": state, "made": made}

    def __getstate__(self) -> dict[str, Any]:
        self._note()
        # What is open stays here. A process group may be there since, which a worker that is spawned does not have.
        return self.__dict__ | {"_running": None, "_options": _with_ranks(self._options)}

    def _here(self, batches: StepLoop) -> Iterator[Batch]:
        for batch in batches:
            yield batch
            if self._running is not batches:
                raise InputError("this StepDataset was set to another place meanwhile: begin a new loop there")

    def _in_worker(self, batches: StepLoop, state: dict[str, Any]) -> Iterator[Batch]:
        used = partial(note_use, self._place.key, self._place.turn)
        for batch in batches:
            batch._others_on_use = used
            state["made"] += 1
            yield batch

    def _now(self) -> State:
        """Return the state of `Batches` where the dataset stands in this process."""
        there = (self._place.turn, self._place.state)
        if self._running is None:
            return there[1]
        here = (self._turn, self._running.state_dict())
        return max(here, there, key=lambda one: (one[0], one[1]["sample"]))[1]  # workers may have read on since

    def _note(self) -> None:
        """Remember where a loop without workers stands."""
        if self._running is not None:
            self._place.advance(self._turn, self._running.state_dict())

    def _open(self, state: Mapping[str, Any], **options: Any) -> StepLoop:
        batches = self._fresh(**options)
        batches.load_state_dict(state)
        return batches

    def _fresh(self, **options: Any) -> StepLoop:
        return self._opens(**(self._options | options))


class MixtureDataset(StepDataset):
    """The batches of a `Mixture`, in their order, for loaders: all of `StepDataset`, which see."""

    _opens = Mixture.open

    def __init__(
        self,
        streams: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, Any] | list[tuple[int, Mapping[str, Any]]],
        **options: Any,
    ) -> None:
        """Open streams; the arguments are those of ``Mixture.open``, of which some stay as in `StepDataset`.

        Raises as ``Mixture.open``.
        """
        with told("streams", streams):
            own = arguments.options_of("streams", streams)
            each = {name: arguments.options_of(f"stream {name!r}", one) for name, one in own.items()}
            placed = {name: _for_workers("MixtureDataset", one) for name, one in each.items()}
        self._begin({"streams": placed, "weights": weights} | _for_workers("MixtureDataset", options))

    def set_weights(self, weights: Mapping[str, Any], from_step: int | None = None) -> None:
        """Let other weights hold from a step on, as `Mixture.set_weights` does, in the next loop over this.

        Raises as `Mixture.set_weights`.
        """
        mixture: Any = self._open(self._now())
        mixture.set_weights(weights, from_step)
        self.resume(mixture.state_dict())


def _for_workers(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as other processes can use them; raises InputError for those that stay with the loop."""
    given = {name: options[name] for name in ("device", "stop", "worker") if options.get(name) is not None}
    kept = [name for name, value in given.items() if str(value) != "cpu"]
    if kept:
        raise InputError(
            f"{kind} takes no {kept[0]}, which is {arguments.shown(options[kept[0]])}: give none. Its batches "
            "are made in worker processes, on the CPU; move them to a device in the loop, end the loop where you "
            "like, and let the DataLoader number its workers"
        )
    folder = "store" if address_of(options.get("store")) is None else "cache"
    return {**options} | ({folder: store_directory(options[folder])} if folder in options else {})


def _with_ranks(options: dict[str, Any]) -> dict[str, Any]:
    known = arguments.DataRank.of(options.get("rank"), options.get("world_size"))
    return options if known.is_assumed else options | {"rank": known.rank, "world_size": known.world_size}


def _refuse_collating(batches: Any, **_: Any) -> NoReturn:
    raise TypeError(
        f"a StepDataset gives whole batches, and this DataLoader puts {len(batches)} of them together: give the "
        "DataLoader batch_size=None, and the StepDataset the batch_size"
    )


default_collate_fn_map[Batch] = default_collate_fn_map[ModelInputs] = _refuse_collating
