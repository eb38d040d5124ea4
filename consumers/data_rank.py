"""Which of the processes that get different data this one is: as given, as torch knows it, or as the launcher says."""

import logging
import os
import sys
from typing import Any, Final, NamedTuple, Self

from tokenmill.errors import InputError

from . import arguments

_LAUNCHERS: Final = (
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)
"""Variables of what starts many processes, which may train one model or many: nobody but the user knows."""
_BOTH: Final = "give both (rank=0, world_size=1: all samples here), or neither"

log = logging.getLogger(__name__)


class DataRank(NamedTuple):
    """The rank of this process among those that get different data, and how many these are."""

    rank: Any
    world_size: Any
    is_assumed: bool = False
    """Whether nobody says so: this process is alone until a process group says otherwise."""

    @classmethod
    def of(cls, rank: Any, world_size: Any) -> Self:
        """Return what is given; where nothing is, what the process group says, or else the environment.

        Raises:
            InputError: one of them alone is given, or the environment does not say which process this is.

        """
        if rank is not None and world_size is not None:
            return cls(rank, world_size)
        if rank is None and world_size is None:
            return cls._found() or cls(0, 1, is_assumed=True)
        if rank is None and cls._found() is None:
            log.warning("world_size is %s without a rank, so this process reads as rank 0: give both", world_size)
            return cls(0, world_size)
        given, other = (("rank", rank), "world_size") if world_size is None else (("world_size", world_size), "rank")
        raise InputError(f"{given[0]} is {arguments.shown(given[1])}, without {other}: {_BOTH}")

    @classmethod
    def _found(cls) -> Self | None:
        group = _group()
        return cls(*group) if group is not None else cls._in_environment()

    @classmethod
    def _in_environment(cls) -> Self | None:
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


def _group() -> tuple[int, int] | None:
    """Return this process's rank in torch's process group, and the group's size; None: there is none."""
    distributed = sys.modules.get("torch.distributed")  # whoever has not loaded torch has no group
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
