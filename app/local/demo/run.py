"""The demo from its first line to its last."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from tokenizers import Tokenizer

from tokenmill.errors import TokenMillError
from tokenmill.stages.training_tokenizer import train_tokenizer

from ...kafka.topics import ensure_topics
from ...settings import Settings
from ...supervisor import Event, Supervisor, WatchLimits, run_until_signalled
from ...tasks import beside
from ...tools.produce import Item, shape_for
from ..broker import Broker
from ..live import Scene, View, log_to_file, telling_of_its_end
from ..state import State
from .background import in_background
from .closing import check, go_back, next_commands, tell_result
from .feeding import Feeding
from .plan import PARTITIONS, VOCABULARY, DemoPlan, demo_settings
from .text import DemoText
from .trainer import Trainer, why_not
from .waiting import until_running, until_settled

RESTART_SECONDS: Final = 8.0
"""Before the killed worker comes back: long enough to see the other one do its work."""
STARTING: Final = "starting the service"
DIFFERENT_CODE: Final = TokenMillError.exit_code


def run_demo(plan: DemoPlan, console: Console) -> int:
    """Run the demo and return the exit code: 0 when every block is equal to the reference's.

    On return, however it comes, no process is left; what is on disk stays in the plan's directory.

    Raises:
        TokenMillError: the broker or a worker cannot do its work.

    """
    state = State(plan.directory.absolute())
    log_to_file(state.logs / "supervisor.log", "info")
    view = View(console)
    also = ", while a model trains on them" if plan.train else ""
    view.show(f"TokenMill: text in Kafka becomes token blocks, once each{also}", "bold")
    view.say(f"text: {plan.text.description}, {plan.text.bytes / 1e6:,.1f} MB")
    tokenizer = in_background(lambda: learn(plan.text))
    view.say(f"starting Apache Kafka in {plan.directory / 'broker'} (the very first start downloads 45 MB)")
    # Outside of the event loop, so that Ctrl-C does not have to wait for a download.
    with Broker(state.broker) as broker:
        view.say(f"Kafka serves at {broker.bootstrap_servers}")
        settings = demo_settings(state, plan.text, broker.bootstrap_servers)
        return run_until_signalled(_Demo(plan, state, settings, view).run(tokenizer))


def learn(text: DemoText) -> Tokenizer:
    """Return a byte-level BPE tokenizer of the text's documents."""
    items = text.items(shape_for(Settings(), text.name))
    return train_tokenizer((item.text for item in items if isinstance(item, Item)), vocabulary_size=VOCABULARY)


class _Demo:
    """One run, once the broker is there."""

    def __init__(self, plan: DemoPlan, state: State, settings: Settings, view: View) -> None:
        self._plan = plan
        self._state = state
        self._settings = settings
        self._view = view
        limits = WatchLimits(first_backoff=RESTART_SECONDS)
        self._supervisor = Supervisor(settings, limits=limits, log_directory=state.logs, on_event=self._tell)
        self._feeding = Feeding(plan, settings, view, self._supervisor.status)
        self._trainer = self._make_trainer()
        self._doing = STARTING

    async def run(self, tokenizer: Future[Tokenizer]) -> int:
        """Tell the whole story; return the exit code."""
        await self._prepare(tokenizer)
        works: list[Coroutine[Any, Any, None]] = [self._supervisor.run(), self._view.run(self._look)]
        if self._trainer is not None:
            works.append(self._train(self._trainer))
        with self._view:
            async with beside(*works), telling_of_its_end(self._view):
                await until_running(self._supervisor.status)
                self._doing = "feeding"
                await self._feeding.run()
                good = await self._end()
                await self._train_on()
        next_commands(self._view, self._plan.directory, self._settings)
        return 0 if good else DIFFERENT_CODE

    async def _prepare(self, tokenizer: Future[Tokenizer]) -> None:
        learnt = await asyncio.wrap_future(tokenizer)
        learnt.save(self._settings.tokenizer)
        self._view.say(f"tokenizer: byte-level BPE, {learnt.get_vocab_size():,} ids, learnt from the text")
        self._state.save(self._settings)
        await ensure_topics(self._settings, partitions=PARTITIONS)

    async def _end(self) -> bool:
        """Wait for the last block, verify all of them, and show where one came from."""
        self._doing = "filling the last blocks"
        await until_settled(self._supervisor.status)
        self._view.say(f"{self._supervisor.status().stored:,} blocks are in the store; verifying each")
        result = await check(self._settings, self._do)
        good = tell_result(self._view, self._feeding.killed, result)
        await go_back(self._settings, self._view)
        return good

    async def _train(self, trainer: Trainer) -> None:
        """Train beside all else, and say how it went."""
        await trainer.run()
        if trainer.first is None or trainer.training is None:
            self._view.say(f"the training ended with code {trainer.code}; {self._training_log} says why", "red")
        else:
            first, last = trainer.first, trainer.training
            self._view.say(
                f"the model's loss went from {first.loss:.2f} to {last.loss:.2f} in {last.step:,} steps; "
                f"{last.wait_share:.0%} of its time it waited for data",
                "bold cyan",
            )

    async def _train_on(self) -> None:
        """Wait for the training's end."""
        if self._trainer is not None and not self._trainer.ended.is_set():
            self._view.say("the model trains on for a while")
            self._do("training")
            await self._trainer.ended.wait()
            await asyncio.sleep(0)  # for the last word on it

    def _make_trainer(self) -> Trainer | None:
        if not self._plan.train:
            return None
        if (reason := why_not()) is not None:
            self._view.say(reason, "yellow")
            return None
        stream = self._settings.streams()[0].name
        return Trainer(self._settings.store, stream, self._plan.train_seconds, self._training_log)

    @property
    def _training_log(self) -> Path:
        return self._state.logs / "training.log"

    def _do(self, doing: str) -> None:
        self._doing = doing

    def _tell(self, event: Event) -> None:
        if event.kind == "moved" and self._doing == STARTING:
            return  # the first worker had all partitions until the second one came
        self._view.say(event.text, {"ended": "red", "suspected": "red", "took over": "green"}.get(event.kind, "dim"))

    def _look(self) -> Scene:
        share = f" {self._feeding.share:.0%}" if self._doing == "feeding" else ""
        title = f"{self._settings.raw_topics[0]} · {self._doing}{share}"
        training = self._trainer.training if self._trainer is not None else None
        return Scene(title, self._supervisor.status(), training)
