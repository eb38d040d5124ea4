"""What a view shows at one moment."""

from dataclasses import dataclass

from ...supervisor import Status


@dataclass(frozen=True, slots=True)
class Training:
    """How a training run that reads the store is going."""

    step: int
    loss: float
    tokens_per_second: float
    wait_share: float
    """Share of its time, 0 to 1, that it waits for data."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The service, and who reads from it."""

    title: str
    status: Status
    training: Training | None = None
