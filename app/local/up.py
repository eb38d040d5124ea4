"""A local broker, the topics and the service in one process and its children, with a view."""

import asyncio
import shlex
from typing import Final

from rich.console import Console

from ..kafka.topics import ensure_topics
from ..process import allow_more_files
from ..settings import Loaded, Settings
from ..settings.explain import DEFAULT_ORIGIN
from ..supervisor import Event, Supervisor, run_until_signalled
from ..tasks import beside
from .broker import Broker
from .keeping import keep_broker
from .live import Scene, View, log_to_file, telling_of_its_end
from .state import State, program

STYLES: Final = {"ended": "red", "not started": "red", "suspected": "red", "took over": "green"}


def settings_in(state: State, loaded: Loaded) -> Settings:
    """Return the settings for a state: what was said now, else what was last time, else the defaults.

    The store is the state's unless another one was said. Where nobody ever said a tokenizer, it is raw bytes.

    Raises:
        SettingsError: the state's settings cannot be used.

    """
    said = {name: value for name, value in loaded.settings if loaded.origins.get(name) != DEFAULT_ORIGIN}
    saved = state.saved()
    before = {name: getattr(saved, name) for name in saved.model_fields_set} if saved is not None else {}
    return Settings(**{"tokenizer": "bytes", "store": state.store, **before, **said})


def run_up(state: State, settings: Settings, console: Console, *, partitions: int, port: int | None) -> int:
    """Run broker and service until Ctrl-C or SIGTERM; return the exit code. On return no process is left.

    A Kafka that ends meanwhile is started again.

    Raises:
        TokenMillError: the broker, a topic or a worker cannot do its work.

    """
    log_to_file(state.logs / "supervisor.log", settings.log_level)
    allow_more_files()
    view = View(console)
    view.say(f"starting Apache Kafka in {state.broker} (the very first start downloads 45 MB)")
    with Broker(state.broker, port=port) as broker:
        settings = settings.at(broker.bootstrap_servers)
        state.save(settings)
        return run_until_signalled(_serve(broker, state, settings, view, partitions), serves=True)


async def _serve(broker: Broker, state: State, settings: Settings, view: View, partitions: int) -> int:
    await ensure_topics(settings, partitions=partitions)
    supervisor = Supervisor(settings, log_directory=state.logs, on_event=lambda event: _tell(view, event))
    title = f"{', '.join(settings.raw_topics)} at {settings.bootstrap_servers}"
    _explain(state, settings, view)
    with view:
        async with (
            beside(
                supervisor.run(),
                view.run(lambda: Scene(title, supervisor.status())),
                keep_broker(broker, lambda text: view.say(text, "red")),
            ),
            telling_of_its_end(view),
        ):
            await asyncio.Event().wait()
    return 0


def _explain(state: State, settings: Settings, view: View) -> None:
    """Say where it all is, and how text gets in."""
    topic = settings.raw_topics[0]
    if settings.tokenizer == "bytes":
        view.say("tokens are raw bytes; --tokenizer with a new --state chooses others")
    view.show(f"Kafka serves at {settings.bootstrap_servers}; logs are in {state.logs}")
    view.show(f"Push text into the topic {topic} with any Kafka client, or in another terminal:", "bold")
    config = shlex.quote(str(state.settings_file))
    view.show(f"  {program()} produce --config {config} {topic} PATH", "bold cyan")
    if settings.for_topic(topic).allow_flush:
        view.show(f"  {program()} flush --config {config} {topic}", "bold cyan")
    view.show("Ctrl-C ends all of it; what is on disk stays.")


def _tell(view: View, event: Event) -> None:
    view.say(event.text, STYLES.get(event.kind, "dim"))
