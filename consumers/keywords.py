"""Arguments that a class does not have: the refusal names the one that is meant."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec

_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "passes": ("epochs", "num_epochs", "max_epochs", "repeat"),
    "world_size": ("num_replicas", "num_ranks", "dp_size", "num_shards"),
    "rank": ("dp_rank", "local_rank", "shard", "index"),
    "sequence_length": ("seq_len", "seq_length", "block_size", "context_length", "max_seq_length", "length"),
    "max_length": ("max_seq_length", "truncation", "sequence_length"),
    "length": ("seq_len", "seq_length", "block_size", "context_length", "sequence_length"),
    "batch_size": ("bs", "micro_batch_size", "per_device_batch_size"),
    "store": ("path", "root", "directory", "data_dir"),
    "stream": ("name", "split", "dataset"),
    "widen": ("dtype",),
    "padding_id": ("pad_id", "pad_token_id"),
    "mask_loss": ("labels", "ignore_index"),
    "timeout": ("wait",),
}
"""What other libraries call these."""
_LOADER: Final = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "collate_fn", "drop_last")
_OF_LOADERS: Final = (
    "is an argument of torch's DataLoader, which reads batches by processes as DataLoader(StepDataset(…), "
    "batch_size=None, num_workers=2) or PaddedBatches(…).loader(num_workers=2); one is seldom needed, and "
    "device='cuda' copies out of pinned memory by itself"
)

Given = ParamSpec("Given")


def naming_unknown(init: Callable[Concatenate[Any, Given], None]) -> Callable[Concatenate[Any, Given], None]:
    """Let a constructor refuse an argument that it does not have with the one that is meant, and all that it has.

    It raises TypeError, as Python does.
    """
    known = [*signature(init).parameters][1:]

    @wraps(init)
    def explained(self: Any, /, *given: Given.args, **named: Given.kwargs) -> None:
        if unknown := [name for name in named if name not in known]:
            raise TypeError(_refusal(type(self).__name__, unknown[0], known))
        init(self, *given, **named)

    return explained


def _refusal(kind: str, name: str, known: list[str]) -> str:
    if name in _LOADER:
        return f"{kind} takes no {name}, which {_OF_LOADERS}"
    meant = [one for one in known if name in _OTHER_NAMES.get(one, ())] or get_close_matches(name, known, 1)
    hint = f"; {meant[0]} is meant, perhaps" if meant else ""
    return f"{kind} takes no {name}{hint}: give {', '.join(known)}"
