"""What a training loop got, how long it waited for it, and how far it is behind its store."""

from dataclasses import astuple, dataclass
from typing import NamedTuple, Self

from . import arguments


@dataclass(slots=True)
class Metrics:
    """Sums over the batches that this process was given, times in seconds; `since` gives those of a part of the run."""

    batches: int = 0
    samples: int = 0
    """In them; without those that are damaged and left out."""
    tokens: int = 0
    """Of x: ``sequence_length`` for each sample."""
    bytes: int = 0
    """Of tokens, as they are stored and travel to a device: ``sequence_length + 1`` for each sample."""
    work_seconds: float = 0.0
    """From getting a batch to asking for the next one."""
    wait_seconds: float = 0.0
    """From asking for a batch to getting it: reading, copying, and waiting for the store. What a device does meanwhile
    is not known, so with one this is the most that the loop can have lost."""
    store_wait_seconds: float = 0.0
    """The part of it in which no whole step was trainable yet."""
    device_wait_seconds: float = 0.0
    """How long the work on a CUDA device waited because a batch was still on its way, as its events show later."""

    @property
    def wait_ratio(self) -> float:
        """The part of its time that the loop, or its device, waited for data: near 0, the model is the bottleneck."""
        seconds = self.work_seconds + self.wait_seconds
        return max(self.wait_seconds, self.device_wait_seconds) / seconds if seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of x in a second of the loop's time: of work and waiting together; 0 before the first batch."""
        seconds = self.work_seconds + self.wait_seconds
        return self.tokens / seconds if seconds else 0.0

    def since(self, earlier: "Metrics") -> Self:
        """Return what came after an earlier state of these; raises InputError where ``earlier`` is something else."""
        arguments.instance_of("earlier", earlier, Metrics)
        return type(self)(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


class Behind(NamedTuple):
    """What the store has for a run beyond where that stands, in the pass that it is in."""

    blocks: int
    """Of the eras in the store, those that it has not wholly read."""
    eras: int
    """The eras that these are in."""
