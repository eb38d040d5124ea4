"""The sequencer: the Faust app that judges duplicates. ``faust -A tokenmill.app.sequencer.app worker`` runs it.

A worker keeps nothing that counts on disk. One judges; where several run, the others wait.
"""

from typing import Final

from faust.types import TP

from ..settings import Settings, load_settings
from ..worker.run import StreamWorker
from ..worker.transport import BatchApp, faust_options
from .signature_partition import SignaturePartition

TICK_SECONDS: Final = 1.0
"""How often it is looked whether verdict logs have lost anything."""


class Sequencer(StreamWorker[SignaturePartition]):
    """What the sequencer app does with signature logs, one a domain."""

    def __init__(self, settings: Settings, app: BatchApp) -> None:
        self._domains = {domain.signatures_topic: domain for domain in settings.domains()}
        super().__init__("sequencer", settings, app, list(self._domains))

    async def _prepare(self) -> None:
        """Do nothing: each domain is settled when its log resumes."""

    def _open(self, tp: TP) -> SignaturePartition:
        return SignaturePartition(tp, self._settings, self._domains[tp.topic], self._app)


def create_app(settings: Settings) -> BatchApp:
    """Return the sequencer as a Faust app. Raises SettingsError where no topic has ``dedup``."""
    topics = [domain.signatures_topic for domain in settings.require_domains()]
    app = BatchApp(f"{settings.group}-sequencer", **faust_options(settings))
    sequencer = Sequencer(settings, app)
    app.agent(app.topic(*topics, value_type=bytes), name="judge", isolated_partitions=True)(
        sequencer.partitions.feed_all
    )

    @app.timer(interval=TICK_SECONDS)  # type: ignore[untyped-decorator]
    async def tick() -> None:
        for partition in list(sequencer.partitions.owned.values()):
            await partition.tick()

    return app


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
