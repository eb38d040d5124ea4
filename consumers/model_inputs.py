"""Batches as dictionaries, which models take by name: ``model(**batch)``."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

import torch

IGNORED: Final = -100
"""What no loss is computed of: the default ``ignore_index`` of torch's cross entropy, and of Transformers."""


class ModelInputs(dict[str, torch.Tensor]):
    """The tensors of one rank in one step, by the names that models of Transformers have for them.

    It can be pickled, pinned and sent to a device, and keeps what else it knows.
    """

    step: int
    """The number of the step."""
    state: dict[str, Any]
    """The state once all steps up to this one, and no later one, were trained on; the same on every rank."""
    streams: tuple[str, ...]
    """The name of the stream of each row; in a `Mixture`, the name that it has there."""
    loss_weights: torch.Tensor
    """As of a `Batch`."""
    _on_use: "Callable[[ModelInputs], None] | None" = None
    """Called once, when a tensor is first asked for."""
    _others_on_use: "Callable[[ModelInputs], None] | None" = None
    """The same, for the process that this is sent to."""

    def __repr__(self) -> str:
        ids = super().__getitem__("input_ids")
        name = f"{type(self).__name__}(step={getattr(self, 'step', None)}, input_ids {list(ids.shape)}"
        return f"{name} on {ids.device})"

    def __getitem__(self, name: str) -> torch.Tensor:
        self._tell_use()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:  # without it, ``**`` would take the tensors unseen
        return super().__iter__()

    def items(self) -> Any:
        """Return names and tensors."""
        self._tell_use()
        return super().items()

    def values(self) -> Any:
        """Return the tensors."""
        self._tell_use()
        return super().values()

    @property
    def label_tokens(self) -> torch.Tensor:
        """How many labels count for a loss: of rows of tokens, all but the first of each, which no model predicts."""
        labels = super().__getitem__("labels")
        return (labels[:, 1:] != IGNORED).sum() if labels.ndim > 1 else torch.tensor(len(labels), device=labels.device)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return this batch with its tensors on a device; it is not used by that."""
        return self._with({name: one.to(device, non_blocking=non_blocking) for name, one in super().items()})

    def pin_memory(self) -> Self:
        """Return this batch with its tensors in pinned memory."""
        return self._with({name: one.pin_memory() for name, one in super().items()})

    def _with(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        made = type(self)(tensors)
        made.__dict__ |= self.__dict__
        return made

    def _tell_others(self, on_use: "Callable[[Any], None]") -> None:
        """Have a function called in the process that this is sent to, once, when it is used there."""
        self._others_on_use = on_use

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values | {"_on_use": values.get("_others_on_use")})

    def _tell_use(self) -> None:
        told, self._on_use = self._on_use, None
        if told is not None:
            told(self)
