"""What the demo is told, and the settings that it makes of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...settings import Settings
from ..state import State
from .text import DemoText

PARTITIONS: Final = 4
"""Two for each mill worker, so that a takeover can be seen."""
VOCABULARY: Final = 8192
"""Small, as the model is; ids fit uint16."""
SEQUENCE_LENGTH: Final = 256
"""Short, so that a tiny model makes many steps on a CPU."""
SEGMENT_BLOCKS: Final = 512
"""Some ten segments in each partition, instead of one."""
ERA_SECONDS: Final = 1.0
"""How soon text is trainable: the model is to begin while one looks on."""
SESSION_SECONDS: Final = 3.0
"""How soon Kafka takes a dead worker's partitions away: sooner than in earnest, so that nobody has to wait for it."""
FEED_SECONDS: Final = 26.0
"""How long the text flows, unless it is too much for that."""
MOST_BYTES_A_SECOND: Final = 2_000_000
"""What two mill workers surely manage on two cores that also train."""
TRAIN_SECONDS: Final = 75.0
"""How long the model trains, from its first step; most of it while text flows and is verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """How the demo goes."""

    directory: Path
    """Where everything lies that it leaves behind."""
    text: DemoText
    train: bool = True
    rate: float | None = None
    """Bytes a second; None: so that the text flows for ``seconds``, at most `MOST_BYTES_A_SECOND`."""
    seconds: float = FEED_SECONDS
    train_seconds: float = TRAIN_SECONDS

    @property
    def bytes_per_second(self) -> float:
        """The rate at which text is fed."""
        return self.rate or max(1.0, min(self.text.bytes / self.seconds, MOST_BYTES_A_SECOND))


def demo_settings(state: State, text: DemoText, bootstrap_servers: str) -> Settings:
    """Return the settings of a new run: each run has a raw topic of its own, ``<text's name>-<number>``.

    So the same text may come again, is milled and verified by itself, and earlier runs stay in the store.
    """
    topic = state.new_name(text.name)
    return Settings(
        bootstrap_servers=bootstrap_servers,
        raw_topics=(topic,),
        store=state.store,
        tokenizer=str(state.directory / "runs" / topic / "tokenizer.json"),
        sequence_length=SEQUENCE_LENGTH,
        segment_blocks=SEGMENT_BLOCKS,
        era_max_seconds=ERA_SECONDS,
        session_timeout=SESSION_SECONDS,
        group=f"tokenmill-{topic}",
        workers=2,
    )
