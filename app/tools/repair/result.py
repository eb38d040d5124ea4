"""What a repair says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.store.repairing import Repaired


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """One partition."""

    stream: str
    partition: int
    segments: Sequence[Repaired]
    """The damaged segments, in order."""

    @property
    def lost(self) -> list[range]:
        """Blocks that nothing gives back; runs that touch are one."""
        runs: list[range] = []
        for run in (run for segment in self.segments for run in segment.lost):
            if runs and runs[-1].stop == run.start:
                runs[-1] = range(runs[-1].start, run.stop)
            else:
                runs.append(run)
        return runs

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        segments = [
            {
                "first": segment.first,
                "what": segment.what,
                "blocks": segment.blocks,
                "given": segment.given,
                "lost": [[run.start, run.stop] for run in segment.lost],
                "kept": [str(path) for path in segment.kept],
            }
            for segment in self.segments
        ]
        return {"stream": self.stream, "partition": self.partition, "segments": segments}
