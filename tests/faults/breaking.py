"""What breaks a running service at random, one thing after the other, and heals it in the end."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from tests.brokers import pause, resume
from tests.faults.configuring import committed, move
from tests.faults.trial import Trial
from tests.service import Service, Worker
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import BrokerError
from tokenmill.store import Store

MOST: Final = 3
"""Workers of a role; two cores carry no more."""
STOPPED_SECONDS: Final = (1.0, 6.0)
"""How long a worker is stopped: within its session, and past it."""
BROKER_SECONDS: Final = (0.0, 4.0)
"""How long the broker is away."""
GROUP_SECONDS: Final = 30.0
"""How long Kafka may take to notice that a group's last member is gone."""
BROKER_STARTS: Final = 3
"""How often a broker that does not come up within its minute is tried, on a machine that is too busy."""
EXPECTED: Final = (RESUME_CODE, BrokerError.exit_code)
"""Codes by which workers end that ask to be started again."""

Step = Callable[[], str | None]


class Breaker:
    """Breaks things with the trial's random numbers, and notes what took effect."""

    def __init__(self, service: Service, broker: Broker, trial: Trial, say: Callable[[str], None]) -> None:
        """Break nothing yet."""
        self._service = service
        self._broker = broker
        self._trial = trial
        self._rng = trial.rng
        self._say = say
        self._stopped: list[tuple[float, Worker]] = []
        self.largest = 0
        """Bytes: the most memory that a worker was seen to have."""
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
            if not self._workers(role):
                self._start(role)

    def _tend(self) -> None:
        now = time.monotonic()
        for until, worker in [entry for entry in self._stopped if entry[0] <= now or not entry[1].running]:
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

    def _workers(self, role: str) -> list[Worker]:
        return [worker for worker in self._service.workers if worker.role == role]

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
        """SIGKILL one, and start another."""
        worker = self._any()
        if self._end(worker, signal.SIGKILL) != -signal.SIGKILL:
            return None  # it ended by itself
        self._start(worker.role)
        return f"{worker.role} SIGKILL"

    def terminate(self) -> str | None:
        """SIGTERM one, and start another."""
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
        seconds = self._rng.uniform(*STOPPED_SECONDS)
        self._stopped.append((time.monotonic() + seconds, worker))
        return f"{worker.role} SIGSTOP"

    def add(self) -> str | None:
        """Start one more."""
        role = self._rng.choice(["mill", "segment"])
        if len(self._workers(role)) >= MOST:
            return None
        self._start(role)
        return f"{role} added"

    def remove(self) -> str | None:
        """End one, in order, for good."""
        worker = self._any()
        if len(self._workers(worker.role)) == 1:
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
        for _ in range(BROKER_STARTS - 1):
            with suppress(BrokerError):
                self._broker.start()
                return
            self._broker.kill()
        self._broker.start()

    def pause_broker(self) -> str:
        """Stop the broker for a while."""
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
        for worker in self._workers(role):
            self._end(worker, signal.SIGKILL)
        moved = move_offsets(self._service.settings, group, lambda offset: self._rng.randrange(offset + 1000))
        self._start(role)
        return f"{role} group moved" if moved else None


def move_offsets(settings: Settings, group: str, moved: Callable[[int], int]) -> bool:
    """Set each committed offset of a group whose members are all dead to another; return whether there were any.

    Waits until Kafka has noticed that the last member is gone.
    """
    deadline = time.monotonic() + GROUP_SECONDS
    while time.monotonic() < deadline:
        with suppress(KafkaException):  # the group still has members as far as Kafka knows, or no coordinator yet
            wanted = {place: moved(offset) for place, offset in committed(settings, group).items()}
            if wanted:
                move(settings, group, wanted)
            return bool(wanted)
        time.sleep(0.5)
    return False


def most_memory(pid: int) -> int:
    """Return the most bytes of memory that a process has had; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) << 10 if found else 0
