"""All faults at random, for as long as one likes: ``python -m tests.faults.soak --minutes 60 --seed 1``.

Round after round, each with new streams on one broker: text flows, something is broken every second or so, and a
reader that never closes holds each block against the reference while that goes on. Then everything is healed, the text
ends, and the judge of all fault tests looks at store, topics, totals and dead letters. The seed, which is printed,
repeats the choices (not the moments at which the machine lets them happen).
"""

import argparse
import logging
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.conftest import topics_on
from tests.faults.breaking import Breaker
from tests.faults.feeding import Feeder
from tests.faults.following import Follower
from tests.faults.oracle import judge
from tests.faults.producing import Producing
from tests.faults.test_worker_kills import busy
from tests.faults.trial import ORACLES, Trial
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker

ROUND_SECONDS: Final = 120.0
"""How long one round's faults last: the reference, slow and plain, has to make all of a round's blocks."""
PAUSE_SECONDS: Final = (0.2, 2.5)
"""Between two faults."""
PARTITIONS: Final = 4
BURST: Final = 5
"""Documents every twentieth of a second: what a machine with two cores takes while workers start all the time."""

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
    raw_topic = topics_on(broker, "soak")(PARTITIONS)
    settings = service_settings(broker, raw_topic, directory, session_timeout=3.0, splits=splits)
    with Service(settings, directory) as service:
        breaker = Breaker(service, broker, trial, say)
        with Follower(settings) as follower, Producing(settings, directory, trial) as producing:
            with Feeder(settings, trial.rng, burst=BURST) as feeder:
                service.mill(2)
                service.segment()
                service.wait_until(lambda: bool(busy(service, "segment")))
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    time.sleep(trial.rng.uniform(*PAUSE_SECONDS))
                    breaker.step([producing.kill])
                    follower.require_health()
                breaker.heal()
                healed = time.monotonic()
                producing.finish()
            account, chains = judge(service, trial)
            recovered = int(time.monotonic() - healed)
        follower.require_all(chains)
        gaps = sum(path.read_text().count("a block is missing") for path in directory.glob("segment-*.log"))
        produced = producing.require_once()
        trial.held("reader", "alive", followed=follower.seen, documents_produced=produced, gaps_that_healed=gaps)
    trial.figures["largest worker, MB"] = max(trial.figures["largest worker, MB"], breaker.largest >> 20)
    trial.figures["longest time to all equal, s"] = max(trial.figures["longest time to all equal, s"], recovered)
    say(f"all equal after {recovered} s: {account}, {feeder.sent:,} documents sent, {follower.seen:,} blocks followed")


def summary(trial: Trial) -> str:
    """Return the table of what fired, what held and what it came to."""
    rows = [("fired", trial.faults), ("came to", trial.figures)]
    lines = [
        f"{name:10} {what:40} {times:12,}" for name, found in rows for what, times in sorted(Counter(found).items())
    ]
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
