"""The sequencer: the Faust app that judges duplicates. ``faust -A tokenmill.app.sequencer.app worker`` runs it.

A worker keeps nothing that counts on disk. One judges; where several run, the others wait.
"""

from typing import Final

from faust.types import TP

from ..settings import Settings, load_settings
from ..worker.run import StreamWorker
from ..worker.transport import BatchApp, faust_options
from .signature_partition import DomainContext, SignaturePartition

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
        app = self._app
        return SignaturePartition(
            tp,
            DomainContext(
                settings=self._settings,
                domain=self._domains[tp.topic],
                send=app.send_record,
                leader=app.leader,
                know=app.know,
                start_partition=app.start_partition,
                set_durable=app.set_durable,
            ),
        )

    async def tick(self) -> None:
        """See that verdict logs are what they were."""
        for partition in list(self.partitions.owned.values()):
            await partition.tick()


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
        await sequencer.tick()

    return app


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
