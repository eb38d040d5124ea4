"""All faults at random, for as long as one likes: ``python -m tests.faults.soak --minutes 60 --seed 1``.

Round after round, each with new streams on one broker: text flows, something is broken every second or so, and a
reader that never closes holds each block against the reference while that goes on. Then everything is healed, the text
ends, and the judge of all fault tests looks at store, topics, totals and dead letters. The seed, which is printed,
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
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tests.commands import Command, command
from tests.conftest import topics_on
from tests.faults.beside import beside
from tests.faults.breaking import Breaker
from tests.faults.feeding import Feeder
from tests.faults.oracle import Expected, Kept, judge, kept_of, new_reader, partitions_of, read_control, read_topic
from tests.faults.test_worker_kills import busy
from tests.faults.trial import ORACLES, Trial
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.recipe_stages import reopen_stages
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.tokenizers import REFERENCE, load_tokenizer
from tokenmill.app.settings import Settings, Stream
from tokenmill.documents import Record
from tokenmill.errors import StoreError
from tokenmill.store import PartitionReader, open_partition

DOCUMENTS: Final = 3000
RATE: Final = "20kB"
"""Slow: a round's faults shall find it at work."""


class Producing:
    """One run over one file, killed again and again; `finish` lets it come to its end."""

    def __init__(self, settings: Settings, directory: Path, trial: Trial) -> None:
        """Write the file, and begin."""
        self._settings = settings
        self._file = directory / "documents.jsonl"
        rng = trial.rng
        rows = ({"id": f"produced-{n}", "text": f"produced {n} " * rng.randrange(1, 30)} for n in range(DOCUMENTS))
        self._file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._process = self._start("--rate", RATE)

    def _start(self, *options: str) -> Command:
        servers = self._settings.bootstrap_servers
        words = ["produce", self._settings.raw_topics[0], str(self._file), "--bootstrap-servers", servers, *options]
        return command(words, self._file.with_name("produce.log"), {})

    def kill(self) -> str | None:
        """Kill it in its work, if it still works, and call it again."""
        self._process.kill()
        killed = self._process.wait() == -signal.SIGKILL
        self._process = self._start("--rate", RATE)
        return "produce SIGKILL" if killed else None

    def finish(self) -> None:
        """Call it once more, to its end."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()
        assert self._process.wait(120) == 0, self._process.said

    def require_once(self) -> int:
        """Fail unless each document is in the raw topic, once; return how many there are."""
        topic = self._settings.raw_topics[0]
        values = (
            record.value or b""
            for partition in range(partitions_of(self._settings, topic))
            for record in read_topic(self._settings, topic, partition)
        )
        names = [json.loads(value)["id"] for value in values if b'"produced-' in value]
        assert len(names) == DOCUMENTS
        assert len(set(names)) == DOCUMENTS
        return DOCUMENTS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


LOOK_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 2.0
"""How long a broker that does not answer is waited for; there is another look."""


@dataclass(slots=True)
class _Chain:
    stream: Stream
    partition: int
    reference: Reference
    next_offset: int = 0
    blocks: deque[ReferenceBlock] = field(default_factory=deque)
    """What the reference made and the store has not yet shown."""
    reader: PartitionReader | None = None
    seen: int = 0
    """Blocks compared."""


class Follower:
    """Follows all streams of the settings; `look` compares what is there now."""

    def __init__(self, settings: Settings) -> None:
        """Look at nothing yet; the streams may still have to be settled."""
        self._settings = settings
        self._chains: list[_Chain] | None = None
        self._client: Consumer = new_reader(settings.bootstrap_servers)

    @property
    def seen(self) -> int:
        """Return how many blocks were compared, all equal."""
        return sum(chain.seen for chain in self._chains or ())

    def require_all(self, chains: list[Expected]) -> None:
        """Fail unless a last look has read every block of the chains."""
        self.look()
        self._client.close()
        assert self.seen == sum(len(chain.blocks) for chain in chains)

    def look(self) -> None:
        """Compare what is there now."""
        if self._chains is None:
            with suppress(KafkaException, AssertionError):  # no broker answers now: there is another look
                self._chains = self._opened()
        for chain in self._chains or ():
            self._look_at(chain)

    def _opened(self) -> list[_Chain] | None:
        chains = []
        for stream in self._settings.streams():
            genesis = read_control(self._settings, stream, self._client).genesis
            if genesis is None:
                return None
            stages = reopen_stages(genesis.recipe, load_tokenizer(self._settings.tokenizer), REFERENCE)
            for partition in range(partitions_of(self._settings, stream.raw_topic)):
                reference = Reference(genesis.recipe, stages, partition, genesis.start(partition))
                chains.append(_Chain(stream, partition, reference))
        return chains

    def _look_at(self, chain: _Chain) -> None:
        reader = chain.reader = chain.reader or self._open(chain)
        if reader is None:
            return
        before, committed = reader.blocks, reader.refresh()  # before the source: it has what they were made of
        where = f"{chain.stream.name} partition {chain.partition}"
        assert committed >= before, f"{where} shrank from {before} to {committed} blocks"
        chain.blocks.extend(chain.reference.blocks(self._more(chain)))
        while chain.seen < committed and chain.blocks:
            wanted = chain.blocks.popleft()
            assert wanted.number == chain.seen, where
            assert reader.read(chain.seen).tobytes() == wanted.tokens, f"{where}, block {chain.seen}"
            assert reader.chain_before(chain.seen + 1) == wanted.chain, f"{where}, block {chain.seen}"
            chain.seen += 1

    def _open(self, chain: _Chain) -> PartitionReader | None:
        try:
            return open_partition(self._settings.store, chain.stream.name, chain.partition, check=True)
        except StoreError:  # nobody has brought the stream here yet
            return None

    def _more(self, chain: _Chain) -> list[Record]:
        """Return the next records of a raw partition; what a silent broker does not give comes at a later look."""
        place = TopicPartition(chain.stream.raw_topic, chain.partition, chain.next_offset or OFFSET_BEGINNING)
        self._client.assign([place])
        found: list[Kept] = []
        while (message := self._client.poll(PATIENCE_SECONDS)) is not None:
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                continue
            found.append(kept_of(message))
        if found:
            chain.next_offset = found[-1].offset + 1
        return [Record(*kept) for kept in found]


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
        breaker, follower = Breaker(service, broker, trial, say), Follower(settings)
        with beside(LOOK_SECONDS, follower.look) as require_health, Producing(settings, directory, trial) as producing:
            with Feeder(settings, trial.rng, burst=BURST) as feeder:
                service.mill(2)
                service.segment()
                service.wait_until(lambda: bool(busy(service, "segment")))
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    time.sleep(trial.rng.uniform(*PAUSE_SECONDS))
                    breaker.step([producing.kill])
                    require_health()
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
