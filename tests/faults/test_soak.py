"""All faults at random, for as long as one likes: ``python -m tests.faults.test_soak --minutes 60 --seed 1``.

Round after round, each with new streams on one broker: text flows, something is broken every second or so, and a
reader that never closes reads each block while that goes on. Then everything is healed, the text ends, and the judge of
all fault tests looks at store, topics, totals and dead letters, and at what the reader got. The seed, which is printed,
repeats the choices (not the moments at which the machine lets them happen).
"""

import argparse
import json
import logging
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest
from confluent_kafka import KafkaException

from tests.brokers import pause, resume
from tests.commands import Command, command
from tests.conftest import topics_on
from tests.faults.altering import committed, move
from tests.faults.feeding import Feeder, digest, following
from tests.faults.oracle import judge, partitions_of, read_topic
from tests.faults.serving import most_memory
from tests.faults.test_workers import busy, of_role
from tests.faults.trial import ORACLES, Trial
from tests.service import Service, Worker, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import BrokerError
from tokenmill.store import Store


@pytest.mark.fault("mixed")
@pytest.mark.needs("minutes")
def test_service_survives_all_faults_at_random(tmp_path: Path, trial: Trial) -> None:
    """While they last a reader gets every block once and in order; afterwards everything is there."""
    soak(tmp_path, trial, trial.rounds(8, 600), print)
    assert len(trial.faults) >= trial.rounds(1, 5)


BROKER_SECONDS: Final = (0.0, 4.0)  # how long the broker is away
EXPECTED: Final = (RESUME_CODE, BrokerError.exit_code)  # codes by which workers end that ask to be started again

Step = Callable[[], str | None]


class Breaker:
    """Breaks things with the trial's random numbers, and notes what took effect."""

    def __init__(self, service: Service, broker: Broker, trial: Trial, say: Callable[[str], None]) -> None:
        self._service, self._broker = service, broker
        self._trial, self._rng, self._say = trial, trial.rng, say
        self._stopped: list[tuple[float, Worker]] = []
        self.largest = 0  # bytes: the most memory that a worker was seen to have
        self._weights: dict[Step, int] = {
            self.kill: 6,
            self.terminate: 3,
            self.stop: 4,
            self.add: 3,
            self.remove: 2,
            self.kill_broker: 1,
            self.pause_broker: 2,
            self.move_group: 1,
        }

    def step(self, others: Sequence[Step] = ()) -> None:
        """Break something, ``others`` perhaps, and do what a supervisor does about the last time."""
        self._tend()
        weights = {**self._weights, **dict.fromkeys(others, 1)}
        (fault,) = self._rng.choices(list(weights), list(weights.values()))
        what = fault()
        if what is not None:
            self._trial.fired(what)
            self._say(what)

    def heal(self) -> None:
        """Let everything run again that was stopped; at least one worker of each role is there on return."""
        for _, worker in self._stopped:
            worker.resume()
        self._stopped.clear()
        self._tend()
        for role in ("mill", "segment"):
            if not of_role(self._service, role):
                self._start(role)

    def _tend(self) -> None:
        now = time.monotonic()
        for until, worker in self._stopped.copy():
            if until <= now or not worker.running:
                worker.resume()
                self._stopped.remove((until, worker))
        for worker in list(self._service.workers):
            code = worker.process.poll()
            if code is None:
                self.largest = max(self.largest, most_memory(worker.process.pid))
                continue
            assert code in EXPECTED, f"a {worker.role} worker ended with {code}:\n{worker.log[-4000:]}"
            self._service.workers.remove(worker)
            self._start(worker.role)
            self._trial.figures["workers that ended to start again"] += 1

    def _start(self, role: str) -> None:
        self._service.mill() if role == "mill" else self._service.segment()

    def _any(self) -> Worker:
        return self._rng.choice(self._service.workers)

    def _end(self, worker: Worker, number: signal.Signals) -> int:
        """Send a signal that ends, wake who cannot hear it, and forget the worker; return the exit code."""
        worker.process.send_signal(number)
        worker.resume()
        code = worker.process.wait(60)
        self._service.workers.remove(worker)
        return code

    def kill(self) -> str | None:
        worker = self._any()
        if self._end(worker, signal.SIGKILL) != -signal.SIGKILL:
            return None  # it ended by itself
        self._start(worker.role)
        return f"{worker.role} SIGKILL"

    def terminate(self) -> str | None:
        worker = self._any()
        code = self._end(worker, signal.SIGTERM)
        self._start(worker.role)
        if code in {*EXPECTED, -signal.SIGTERM}:  # it had not begun, or was about to end by itself
            return None
        assert code == 0, f"a {worker.role} worker ended with {code} on SIGTERM:\n{worker.log[-4000:]}"
        return f"{worker.role} SIGTERM"

    def stop(self) -> str | None:
        """SIGSTOP one for a while; it goes on in a later step."""
        worker = self._any()
        if any(worker is stopped for _, stopped in self._stopped):
            return None
        worker.pause()
        seconds = self._rng.uniform(1.0, 6.0)  # within its session, and past it
        self._stopped.append((time.monotonic() + seconds, worker))
        return f"{worker.role} SIGSTOP"

    def add(self) -> str | None:
        role = self._rng.choice(["mill", "segment"])
        if len(of_role(self._service, role)) >= 3:  # two cores carry no more
            return None
        self._start(role)
        return f"{role} added"

    def remove(self) -> str | None:
        """End one, in order, for good."""
        worker = self._any()
        if len(of_role(self._service, worker.role)) == 1:
            return None
        self._end(worker, signal.SIGTERM)
        return f"{worker.role} removed"

    def kill_broker(self) -> str:
        """SIGKILL the broker, perhaps a worker, too, and start the broker again."""
        self._broker.kill()
        if self._rng.random() < 1 / 2:
            self.kill()
        time.sleep(self._rng.uniform(*BROKER_SECONDS))
        self._start_broker()
        return "broker SIGKILL"

    def _start_broker(self) -> None:
        """Start it, again where a busy machine was too slow."""
        for _ in range(2):
            with suppress(BrokerError):
                self._broker.start()
                return
            self._broker.kill()
        self._broker.start()

    def pause_broker(self) -> str:
        pause(self._broker)
        time.sleep(self._rng.uniform(*BROKER_SECONDS))
        resume(self._broker)
        return "broker SIGSTOP"

    def move_group(self) -> str | None:
        """Kill all workers of a role, move or delete their group's committed offsets, and start some."""
        role = self._rng.choice(["mill", "segment"])
        group = self._service.settings.group
        if role == "segment":
            group += f"-store-{Store.open(self._service.settings.store).id}"
        for worker in of_role(self._service, role):
            self._end(worker, signal.SIGKILL)
        moved = move_offsets(self._service.settings, group, lambda offset: self._rng.randrange(offset + 1000))
        self._start(role)
        return f"{role} group moved" if moved else None


def move_offsets(settings: Settings, group: str, moved: Callable[[int], int]) -> bool:
    """Set each committed offset of a group whose members are all dead to another; return whether there were any.

    Waits until Kafka has noticed that the last member is gone: for half a minute at most.
    """
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        with suppress(KafkaException):  # the group still has members as far as Kafka knows, or no coordinator yet
            wanted = {place: moved(offset) for place, offset in committed(settings, group).items()}
            if wanted:
                move(settings, group, wanted)
            return bool(wanted)
        time.sleep(0.5)
    return False


DOCUMENTS: Final = 3000
RATE: Final = "20kB"  # slow: a round's faults shall find it at work


class Producing:
    """One run over one file, killed again and again; `finish` lets it come to its end."""

    def __init__(self, settings: Settings, directory: Path, trial: Trial) -> None:
        self._settings, self._file = settings, directory / "documents.jsonl"
        texts = [f"produced {n} " * trial.rng.randrange(1, 30) for n in range(DOCUMENTS)]
        rows = [{"id": f"produced-{n}", "text": text} for n, text in enumerate(texts)]
        self._file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._process = self._start("--rate", RATE)

    def _start(self, *options: str) -> Command:
        words = ["produce", self._settings.raw_topics[0], str(self._file), *options]
        servers = ["--bootstrap-servers", self._settings.bootstrap_servers]
        return command([*words, *servers], self._file.with_name("produce.log"), {})

    def kill(self) -> str | None:
        """Kill it in its work, if it still works, and call it again."""
        self._process.kill()
        killed, self._process = self._process.wait() == -signal.SIGKILL, self._start("--rate", RATE)
        return "produce SIGKILL" if killed else None

    def finish(self) -> None:
        self._process.kill()
        self._process = self._start()
        assert self._process.wait(120) == 0, self._process.said

    def require_once(self) -> int:
        """Fail unless each document is in the raw topic, once; return how many there are."""
        topic = self._settings.raw_topics[0]
        logs = (read_topic(self._settings, topic, number) for number in range(partitions_of(self._settings, topic)))
        values = [kept.value or b"" for log in logs for kept in log]
        names = [json.loads(value)["id"] for value in values if b'"produced-' in value]
        assert len(names) == len(set(names)) == DOCUMENTS
        return DOCUMENTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()


ROUND_SECONDS: Final = 120.0
"""How long one round's faults last: the reference, slow and plain, has to make all of a round's blocks."""
Say = Callable[[str], None]


def soak(directory: Path, trial: Trial, seconds: float, say: Say) -> None:
    """Run rounds until the time is over; raises what a round found wrong."""
    with Broker(directory / "broker") as broker:
        began, number = time.monotonic(), 0
        while number == 0 or time.monotonic() - began < seconds:
            left = seconds - (time.monotonic() - began)
            home = directory / f"round-{number}"
            home.mkdir()
            run_round(home, broker, trial, min(ROUND_SECONDS, max(left, 1.0)), lambda text: say(f"{number:3} {text}"))  # noqa: B023 - called before the next round
            number += 1


def run_round(directory: Path, broker: Broker, trial: Trial, seconds: float, say: Say) -> None:
    """Break things for so long on new streams, then heal them and let the judge look."""
    splits = {"train": 900, "dev": 100}
    raw_topic = topics_on(broker, "soak")(4)
    settings = service_settings(broker, raw_topic, directory, session_timeout=3.0, splits=splits)
    with Service(settings, directory) as service:
        breaker = Breaker(service, broker, trial, say)
        following_store, producing = following(settings.store, 1.0), Producing(settings, directory, trial)
        with following_store as seen, producing:
            with Feeder(settings, trial.rng, burst=5) as feeder:  # what two cores take while workers start
                service.mill(2)
                service.segment()
                service.wait_until(lambda: bool(busy(service, "segment")))
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    time.sleep(trial.rng.uniform(0.2, 2.5))
                    breaker.step([producing.kill])
                breaker.heal()
                healed = time.monotonic()
                producing.finish()
            account, chains = judge(service, trial)
            recovered = int(time.monotonic() - healed)
        read = {name: blocks for name, blocks in seen.items() if blocks}
        made = {
            (chain.stream.name, chain.partition): [digest(one.tokens, one.chain) for one in chain.blocks]
            for chain in chains
        }
        assert read == {name: blocks for name, blocks in made.items() if blocks}
        followed = sum(map(len, read.values()))
        gaps = sum(path.read_text().count("a block is missing") for path in directory.glob("segment-*.log"))
        produced = producing.require_once()
        trial.held("reader", "alive", followed=followed, documents_produced=produced, gaps_that_healed=gaps)
    for what, figure in (("largest worker, MB", breaker.largest >> 20), ("longest time to all equal, s", recovered)):
        trial.figures[what] = max(trial.figures[what], figure)
    say(f"all equal after {recovered} s: {account}, {feeder.sent:,} documents sent, {followed:,} blocks followed")


def summary(trial: Trial) -> str:
    rows = [("fired", one) for one in sorted(trial.faults.items())]
    rows += [("came to", one) for one in sorted(trial.figures.items())]
    lines = [f"{name:10} {what:40} {times:12,}" for name, (what, times) in rows]
    return "\n".join([*lines, "held       " + ", ".join(oracle for oracle in ORACLES if oracle in trial.oracles)])


def main() -> int:
    """Run for the time that the command line gives; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description="Break a running service at random, and check that nothing is lost.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    began = time.monotonic()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that the broker is away is no news here

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"{minutes:3}:{seconds:02} {text}", flush=True)  # noqa: T201 - what this program is for

    directory = Path(tempfile.mkdtemp(prefix="tokenmill-soak-"))
    say(f"seed {seed}, {arguments.minutes:g} minutes; logs and stores in {directory}")
    trial = Trial(random.Random(seed), full=True)
    try:
        soak(directory, trial, arguments.minutes * 60, say)
    except BaseException as error:
        say(f"FAILED ({error!r}); the same choices again: make soak MINUTES={arguments.minutes:g} SEED={seed}")
        raise
    finally:
        print(summary(trial), flush=True)  # noqa: T201 - what this program is for
    say(f"ok; nothing lost, nothing twice, nothing different. SEED={seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
