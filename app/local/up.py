"""`up`: a local broker that is kept running, topics and the service, in one process and its children."""

import asyncio
import shlex
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import structlog
from rich.console import Console

from tokenmill.errors import BrokerError

from ..kafka.topics import ensure_topics
from ..mill.recipes import plan_topic
from ..processes import allow_more_files
from ..settings import Loaded, Settings
from ..settings.model import DEFAULT_ORIGIN
from ..supervisor.supervisor import Supervisor
from ..tasks import beside, run_until_signalled
from .broker import Broker, download
from .live_view import LiveScene, LiveView, log_to_file, saying_when_cancelled
from .local_state import LocalState, program

LOOK_SECONDS: Final = 1.0
"""Between two looks at whether the broker's process exists; a look reads a file and a line of the kernel's."""
PAUSE_SECONDS: Final = 10.0
"""Between two attempts to start the broker: a full disk or a taken port waits for a person."""
END_SECONDS: Final = 0.2
"""Between two attempts to end a broker that is just starting, and no longer wanted."""
log = structlog.get_logger(__name__)


def settings_in(state: LocalState, loaded: Loaded) -> Settings:
    """Return the settings for a state: what is given now, else what was saved last time, else the defaults.

    The store is the state's unless another one is given. Without any tokenizer, tokens are raw bytes.
    """
    said = {name: value for name, value in loaded.settings if loaded.origins.get(name) != DEFAULT_ORIGIN}
    saved = state.saved()
    before = {name: getattr(saved, name) for name in saved.model_fields_set} if saved is not None else {}
    return Settings(**{"tokenizer": "bytes", "store": state.store, **before, **said})


def run_up(
    state: LocalState,
    settings: Settings,
    console: Console,
    *,
    partitions: int,
    port: int | None,
    origins: Mapping[str, str],
) -> int:
    """Run broker and service until Ctrl-C or SIGTERM; return the exit code. On return no process is left.

    ``origins`` says where each setting came from. Raises TokenMillError where broker, topic or worker cannot do its
    work.
    """
    log_to_file(state.logs / "supervisor.log", settings.log_level)
    allow_more_files()
    view = LiveView(console)
    view.say(f"starting Apache Kafka in {state.broker}{download()}")
    with Broker(state.broker, port=port) as broker:
        settings = settings.at(broker.bootstrap_servers)
        state.save(settings)

        async def serve() -> None:
            await ensure_topics(settings, partitions=partitions)
            supervisor = Supervisor(settings, log_directory=state.logs, on_event=view.say_event, origins=origins)
            title = f"{', '.join(settings.raw_topics)} at {settings.bootstrap_servers}"
            plan = await asyncio.to_thread(plan_topic, settings, settings.raw_topics[0])
            view.say(f"{plan.marks}; streams that were begun with other tokens keep theirs")
            _explain(state, settings, view)
            view.say("starting the workers, which takes some seconds")
            keeping = keep_broker(broker, lambda text: view.say(text, "red"))
            seeing = view.run(lambda: LiveScene(title, supervisor.status()))
            async with beside(supervisor.run(), seeing, keeping), saying_when_cancelled(view):
                await asyncio.Event().wait()

        return run_until_signalled(serve(), serves=True)


def _explain(state: LocalState, settings: Settings, view: LiveView) -> None:
    topic = settings.raw_topics[0]
    if settings.tokenizer == "bytes":
        view.say("no tokenizer is set, so tokens are raw bytes; to use one, give --tokenizer and a new --state")
    view.show(f"Kafka serves at {settings.bootstrap_servers}; logs are in {state.logs}")
    view.show(f"Push text into the topic {topic} with any Kafka client, or in another terminal:", "bold")
    config = shlex.quote(str(state.settings_file))
    view.show(f"  {program()} produce --config {config} {topic} PATH", "bold cyan")
    if settings.for_topic(topic).allow_flush:
        view.show(f"  {program()} flush --config {config} {topic}", "bold cyan")
    if settings.page_url is not None:
        view.show(f"Watch it in a browser: {settings.page_url}", "bold")
    view.show("Ctrl-C ends all of it; what is on disk stays.")


async def keep_broker(broker: Broker, say: Callable[[str], None]) -> NoReturn:
    """Start ``broker`` again whenever it has ended, until cancelled, when no start is under way; tell ``say`` of it."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if broker.running:
            continue
        log.error("Kafka ended", directory=str(broker.directory))
        say(f"Kafka ended by itself or was killed ({broker.log_path} may say why); starting it again")
        try:
            await _start(broker)
        except BrokerError as error:
            log.error("Kafka does not start", reason=str(error))  # noqa: TRY400 - the reason is all there is
            say(f"Kafka does not start: {error}; next attempt in {PAUSE_SECONDS:.0f} s")
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            log.info("Kafka started again", servers=broker.bootstrap_servers)
            say(f"Kafka serves again at {broker.bootstrap_servers}")


async def _start(broker: Broker) -> None:
    """Start the broker in a thread, for that takes seconds; on return a cancelled start has ended."""
    starting = asyncio.ensure_future(asyncio.to_thread(broker.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            await asyncio.to_thread(broker.kill)  # so that `Broker.start` returns
            await asyncio.wait({starting}, timeout=END_SECONDS)
        starting.exception()  # retrieved, so that asyncio does not log it
        raise
