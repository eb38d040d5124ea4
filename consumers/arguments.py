"""Checks of the arguments of this package's classes; each refusal says what to give."""

import logging
import math
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from itertools import pairwise
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Ranks, SequenceId

_INT64: Final = range(-(1 << 63), 1 << 63)
_LONGEST_SECONDS: Final = threading.TIMEOUT_MAX
"""What the system can wait for in one go: some 292 years."""
_SHOWN: Final = 200
_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "passes": ("epochs", "num_epochs", "max_epochs", "repeat"),
    "world_size": ("num_replicas", "num_ranks", "dp_size", "num_shards"),
    "rank": ("dp_rank", "local_rank", "shard", "index"),
    "sequence_length": ("seq_len", "block_size", "context_length", "max_seq_length", "max_length", "length"),
    "max_length": ("max_seq_length", "truncation", "sequence_length"),
    "seed": ("shuffle_seed", "random_seed", "data_seed", "generator"),
    "length": ("seq_len", "seq_length", "block_size", "context_length", "sequence_length"),
    "batch_size": ("bs", "micro_batch_size", "per_device_batch_size"),
    "store": ("path", "root", "directory", "data_dir"),
    "stream": ("name", "split", "dataset"),
    "widen": ("dtype",),
    "padding_id": ("pad_id", "pad_token_id"),
    "mask_loss": ("labels", "ignore_index"),
    "timeout": ("wait",),
}
_TAKEN_BY: Final[Mapping[str, str]] = {
    "batch_size": "Batches and PaddedBatches",
    "drop_last": "torch's DataLoader, Batches and PaddedBatches",
    "passes": "Batches and document samplers",
    "rank": "Batches, PaddedBatches and document samplers: divide numbers of samples yourself",
    "seed": "Batches and document samplers",
    "sequence_length": "Batches and EraDataset",
    "shuffle": "Batches and document samplers",
    "world_size": "Batches, PaddedBatches and document samplers: divide numbers of samples yourself",
}
"""Arguments that people look for in a class which has them not."""

Given = ParamSpec("Given")
Read = TypeVar("Read")
_LAUNCHERS: Final = (
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
"""Variables that launchers of many processes set; whether these train one model, only the user knows."""
_BOTH: Final = "give both (rank=0, world_size=1: all samples here), or neither"

log = logging.getLogger(__name__)


def _argument(read: Callable[[Any], Read | None], advice: str) -> Callable[[str, Any], Read]:
    """Return what checks an argument, given its name and value; it refuses all of which ``read`` makes None."""

    def checked(name: str, value: Any) -> Read:
        if (found := read(value)) is None:
            raise InputError(f"{name} is {shown(value)}: give {advice}")
        return found

    return checked


def shown(value: Any) -> str:
    """Return a value as a message repeats it: as code, and not longer than a message may be."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return f"a number of {value.bit_length()} bits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _int(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # the latter two of tensors that hold none, or are on a device
        return None


def _number(value: Any, most: float) -> float | None:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= most else None


def _seed(value: Any) -> int | None:
    """Return a seed as an int64; one without a sign, as torch has them, is the one of the same bits."""
    number = _int(value)
    if number is None or not _INT64[0] <= number < 1 << 64:
        return None
    return number if number in _INT64 else number - (1 << 64)


def _eras(value: Any) -> tuple[int, int | None] | None:
    if value is None:
        return 0, None
    is_range = isinstance(value, range) and value.step == 1 and 0 <= value.start < value.stop <= _INT64[-1]
    return (value.start, value.stop) if is_range else None


def _row(value: Any) -> npt.NDArray[np.int64] | None:
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # rows of several lengths; a tensor on a device
        return None
    fits = given.dtype.kind == "i" or (given.dtype.kind == "u" and int(given.max(initial=0)) in _INT64)
    if given.ndim != 1 or (given.size and not fits) or isinstance(value, str | bytes | Mapping):
        return None
    return given.astype(np.int64)


def _slice(value: slice) -> slice | None:
    given = (value.start, value.stop, value.step)
    parts = [None if part is None else _int(part) for part in given]
    fits = all((part is None) == (one is None) for part, one in zip(parts, given, strict=True)) and parts[2] != 0
    return slice(*parts) if fits else None


def _pair(value: Any) -> tuple[int, int] | None:
    match [_int(one) for one in value] if isinstance(value, tuple | list) else []:
        case [int(first), int(second)]:
            return first, second
    return None


def _place(value: Any) -> tuple[int, int] | int | None:
    found = _pair(value)
    return _int(value) if found is None else found


flag: Final = _argument(lambda value: bool(value) if isinstance(value, bool | np.bool_) else None, "True or False")
stream_name: Final = _argument(
    lambda value: value if isinstance(value, str) else None, "the stream's name, such as 'raw-text.train'"
)
seed_of: Final = _argument(_seed, "a whole number of 64 bits, -2**63 to 2**64 - 1, such as 1")
eras_of: Final = _argument(_eras, "a range of one era or more, such as range(0, 8), or None for all")
loss_weight_of: Final = _argument(
    lambda value: _number(value, float(np.finfo(np.float32).max)), "a number, 0 or more, such as 0.5"
)
seconds: Final = _argument(
    lambda value: _number(value, _LONGEST_SECONDS),
    f"a finite number of seconds, 0 or more and {_LONGEST_SECONDS:.0f} at most, such as 30.0",
)
options_of: Final = _argument(
    lambda value: dict(value) if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else None,
    "options by name, such as {'store': 'store', 'stream': 's'}",
)
function_of: Final = _argument(
    lambda value: value if callable(value) else None, "a function of no argument that says True or False, or None"
)
row_of: Final = _argument(_row, "a row of whole numbers, such as [0, 7]")
index_of: Final = _argument(_int, "the number of a sample, such as 0 or -1")
slice_of: Final = _argument(_slice, "a slice of whole numbers, such as [0:8]")
place_of: Final[Callable[[str, Any], tuple[int, int] | int]] = _argument(
    _place, "a partition and a token, as in windows[0, 7], or a window's number"
)
port_of: Final = _argument(
    lambda value: number if (number := _int(value)) in range(1 << 16) else None,
    "a whole number from 0 (any that is free) to 65535",
)


def whole(name: str, value: Any, least: int, unit: str, most: int = _INT64[-1]) -> int:
    """Return a whole number, as one of numpy's, as an int; raises InputError for anything else, such as 4.0 or True."""
    number = _int(value)
    if number is None or not least <= number <= most:
        above = number is not None and number > most
        bound = f"{most} at most" if above else f"{least} or more, such as {max(least, 4)}"
        raise InputError(f"{name} is {shown(value)}: give a whole number of {unit}, {bound}")
    return number


def schedule_of(name: str, value: Any, place: str = "step", given: str = "a number") -> list[tuple[int, Any]]:
    """Return what is given from which place on, a value alone from 0 on; raises InputError where none ascend from 0."""
    if not isinstance(value, list):
        return [(0, value)]
    pairs = [one for one in value if isinstance(one, tuple | list) and len(one) == 2]  # noqa: PLR2004 - a pair
    if not value or len(pairs) < len(value):
        raise InputError(f"{name} is {shown(value)}: give {given}, or pairs of a {place} and {given} from there on")
    found = [(whole(f"a {place} of {name}", start, 0, f"{place}s"), one) for start, one in pairs]
    if found[0][0] or any(before[0] >= after[0] for before, after in pairwise(found)):
        raise InputError(f"{name} is {shown(value)}: give {place}s that ascend, the first one 0")
    return found


def numbers_in(indices: Any, count: int, things: str) -> npt.NDArray[np.int64]:
    """Return numbers of ``count`` things as those from 0 on, also negative ones; raises InputError or IndexError."""
    wanted = row_of("indices", indices)
    if len(wanted) and not (-count <= wanted.min() and wanted.max() < count):
        raise IndexError(f"there are {count} {things}; one of {shown(wanted.tolist())} was asked for")
    return wanted % max(count, 1)


def prefetch_of(value: Any) -> int:
    """Return how many batches to send ahead; raises InputError where it is no such number."""
    return whole("prefetch", value, 0, "batches", 1024)  # each keeps a buffer of pinned memory; two hide any copying


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return one of the choices; raises InputError for anything else."""
    if not (isinstance(value, str) and value in choices):
        raise InputError(f"{name} is {shown(value)}: give {' or '.join(map(repr, choices))}")
    return value


def instance_of(name: str, value: Any, kind: type[Any], called: str | None = None) -> Any:
    """Return the value if it is of this class, ``called`` so in messages; raises InputError for anything else."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {shown(value)}: give a {called or kind.__name__}")
    return value


def ranks_of(batch_size: Any, rank: Any, world_size: Any, worker: Any) -> Ranks:
    """Return how steps are divided; raises InputError where one of these cannot be, or they contradict each other."""
    number, count = _pair(worker) or (-1, -1)
    if not 0 <= number < count <= _INT64[-1]:
        raise InputError(f"worker is {shown(worker)}: give this worker's number and their count, such as (0, 2)")
    return Ranks(
        whole("batch_size", batch_size, 1, "samples"),
        whole("rank", rank, 0, "ranks before this one"),
        whole("world_size", world_size, 1, "ranks"),
        number,
        count,
    )


def too_large(ranks: Ranks, sequence: SequenceId, total: int) -> InputError:
    """Return what to say of steps that take more samples than a whole sequence has."""
    first, stop = sequence.eras
    eras = f"the eras from {first} on" if stop is None else f"eras={range(first, stop)}"
    there = f"{eras} of {sequence.stream} have {total} samples" + (
        f" in {sequence.passes} passes" if sequence.passes > 1 else ""
    )
    if not total:
        return InputError(f"{there}, and no more will come: name eras that have some, or another stream")
    return InputError(
        f"batch_size is {ranks.batch_size} and world_size {ranks.world_size}, so a step takes {ranks.global_batch} "
        f"samples, but {there}: give a smaller batch_size, or more eras"
    )


def outputs_of(mask_loss: Any, as_dict: Any, widen: Any, *, in_order: bool) -> tuple[bool, bool]:
    """Return whether losses are masked, and whether batches are dictionaries; raises InputError where they cannot."""
    masked, widens, named = flag("mask_loss", mask_loss), flag("widen", widen), flag("as_dict", as_dict)
    if masked and not widens:
        raise InputError("mask_loss sets y to -100, which only int64 holds: leave out widen=False, or mask yourself")
    if named and (in_order or not widens):
        other = "in_order=True, whose loops ask batches where chunks begin" if in_order else "widen=False"
        raise InputError(f"as_dict is True, for int64 tensors by name: give it without {other}")
    return masked, named


def timeout_of(value: Any) -> float | None:
    """Return a timeout in seconds; None means for ever, and so does an infinite one."""
    endless = isinstance(value, float | np.floating) and value == math.inf
    return None if value is None or endless else seconds("timeout", value)


def state_of(value: Any, keys: set[str], taken: str) -> Mapping[str, Any]:
    """Return a state that has these keys; raises InputError for anything else, saying what is ``taken``."""
    if not isinstance(value, Mapping) or not keys <= {*value}:
        raise InputError(f"what was given as state is no state of this, but {shown(value)}: give {taken}")
    return value


def labels_of(labels: Mapping[str, Any], *, taken: set[str]) -> dict[str, str]:
    """Return labels of metrics as text; raises InputError for those that Prometheus has not, or that are ``taken``."""
    found = {}
    for name, value in labels.items():
        # Prometheus keeps those that begin with two underscores for itself.
        if not re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name) or name in taken:
            raise InputError(
                f"the label {name!r} cannot be: give letters, digits and underscores, and none of {sorted(taken)}"
            )
        number = _int(value)
        if not isinstance(value, str) and (number is None or number not in _INT64):
            raise InputError(f"the label {name} is {shown(value)}: give text or a whole number, such as '0'")
        found[name] = str(value) if number is None else str(number)
    return found


def naming_unknown(init: Callable[Concatenate[Any, Given], None]) -> Callable[Concatenate[Any, Given], None]:
    """Let a constructor refuse an unknown argument with a TypeError that has the one that is meant, or who has it."""
    known = [*signature(init).parameters][1:]
    placed = [name for name, one in signature(init).parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD][1:]

    @wraps(init)
    def explained(self: Any, /, *given: Given.args, **named: Given.kwargs) -> None:
        if unknown := [name for name in named if name not in known]:
            raise TypeError(_refusal(type(self).__name__, unknown[0], known))
        if len(given) > len(placed):
            other = next(name for name in known if name not in placed)
            raise TypeError(f"{type(self).__name__} takes {', '.join(placed)} by place, and others by name: {other}=…")
        init(self, *given, **named)

    return explained


def _refusal(kind: str, name: str, known: list[str]) -> str:
    if name in {"num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "collate_fn"}:
        return (
            f"{kind} takes no {name}, which is an argument of torch's DataLoader, which reads batches by processes as "
            "DataLoader(StepDataset(…), batch_size=None, num_workers=2) or PaddedBatches(…).loader(num_workers=2); one "
            "is seldom needed, and device='cuda' copies out of pinned memory by itself"
        )
    if meant := [one for one in known if name in _OTHER_NAMES.get(one, ())] or get_close_matches(name, known, 1):
        return f"{kind} takes no {name}; {meant[0]} is meant, perhaps"
    for one, takers in _TAKEN_BY.items():
        if name == one or name in _OTHER_NAMES.get(one, ()):
            return f"{kind} takes no {name}; {one} is an argument of {takers}"
    return f"{kind} takes no {name}; it takes {', '.join(known)}"


class DataRank(NamedTuple):
    """The rank of this process among those that get different data, and how many these are."""

    rank: Any
    world_size: Any
    is_assumed: bool = False
    """Whether neither arguments nor environment say so: the process is alone until a process group is there."""

    @classmethod
    def of(cls, rank: Any, world_size: Any) -> Self:
        """Return what is given; where nothing is, what the process group says, or else the environment.

        Raises InputError where only one is given, or the environment does not say which process this is.
        """
        if rank is not None and world_size is not None:
            return cls(rank, world_size)
        if rank is None and world_size is None:
            return cls._found() or cls(0, 1, is_assumed=True)
        if rank is None and cls._found() is None:
            log.warning("world_size is %s without a rank, so this reads as rank 0: give both", shown(world_size))
            return cls(0, world_size)
        given, other = (("rank", rank), "world_size") if world_size is None else (("world_size", world_size), "rank")
        raise InputError(f"{given[0]} is {shown(given[1])}, without {other}: {_BOTH}")

    @classmethod
    def _found(cls) -> Self | None:
        if (group := _group()) is not None:
            return cls(*group)
        named = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
        told = ", ".join(f"{name}={value}" for name, value in named.items())
        match [int(value) for value in named.values() if value.isascii() and value.isdigit()]:
            case [int(rank), int(size)] if rank < size:
                return cls(rank, size)
            case _ if named:
                raise InputError(
                    f"the environment has {told}, which does not say which process this is: set RANK and WORLD_SIZE as "
                    f"torchrun does, open this when the process group is initialised, or {_BOTH.partition(',')[0]})"
                )
        for launcher, number, count in _LAUNCHERS:
            if os.environ.get(count, "1") != "1" and number in os.environ:
                raise InputError(
                    f"{launcher} started this process as number {os.environ[number]} of {os.environ[count]} "
                    f"({number}, {count}), and neither a process group nor RANK and WORLD_SIZE say whether these train "
                    "one model: initialise the process group first, or give rank and world_size (0 and 1: all samples "
                    "in each process)"
                )
        return None

    def require(self) -> None:
        """Raise InputError where this process was taken for alone, and a process group of several is there now."""
        group = _group() if self.is_assumed else None
        if group is not None and group[1] > 1:
            raise InputError(
                f"the process group has {group[1]} ranks, and was initialised after this was opened as the only one: "
                "open it afterwards, or give rank and world_size (0 and 1: all samples in each process)"
            )


def warn_of_workers(kind: str, instead: str) -> None:
    """Log it where a loop is in a data set of somebody's own, each of whose workers gets all that there is."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    if info is not None and info.num_workers > 1 and info.id == 0:
        log.warning("each of the %s workers of a DataLoader reads all of %s: %s", info.num_workers, kind, instead)


def _group() -> tuple[int, int] | None:
    """Return this process's rank in torch's process group, and the group's size; None: there is none."""
    distributed = sys.modules.get("torch.distributed")  # without torch there is no group
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
