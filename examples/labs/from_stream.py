"""Lab: the same from a stream. Text goes into Kafka while two loaders read what becomes of it, train and validation.

python examples/labs/from_stream.py                        # starts a Kafka and the service of its own
python examples/labs/from_stream.py --running --store store     # reads the store of a service that runs already
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
from corpus import TOKENMILL, arguments, ran_with, reading

from tokenmill.app.local.broker import Broker
from tokenmill.consumers import Batches
from tokenmill.errors import StoreError

LENGTH = 127
ENDLESS = 1_000_000  # passes


def main() -> None:
    """Feed, read, measure."""
    parser = arguments(__doc__)
    parser.add_argument("--running", action="store_true", help="a service with this store runs already, and is fed")
    parser.add_argument("--topic", default="raw-text")
    parser.add_argument("--port", type=int, default=9092, help="of the Kafka that is started")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    print(ran_with())
    if options.running:
        measure(options.store, options.topic, options.steps)
        return
    with service(options) as environment:
        produce(options, environment)
        measure(options.store, options.topic, options.steps)


@contextmanager
def service(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Run a Kafka and the service, as in production, until the block ends; give it the settings of both."""
    options.store.mkdir(parents=True, exist_ok=True)
    directory = options.store.with_name(options.store.name + "-broker")
    environment = os.environ | {
        "TOKENMILL_BOOTSTRAP_SERVERS": f"127.0.0.1:{options.port}",
        "TOKENMILL_RAW_TOPICS": options.topic,
        "TOKENMILL_STORE": str(options.store),
        "TOKENMILL_TOKENIZER": options.tokenizer or "bytes",
        "TOKENMILL_SEQUENCE_LENGTH": str(LENGTH),
        "TOKENMILL_ERA_MAX_SECONDS": "1",
        "TOKENMILL_SPLITS": "train=90,validation=10",
    }
    print(f"starting Kafka in {directory}")
    with Broker(directory, port=options.port):  # it ends with this process, however that ends
        subprocess.run([TOKENMILL, "topics", "create", "--partitions", "2"], env=environment, check=True)
        log = options.store.with_name(options.store.name + "-service.log")
        print(f"the service runs, and writes its log to {log}")
        with log.open("w") as file, subprocess.Popen([TOKENMILL, "serve"], env=environment, stderr=file) as process:
            try:
                yield environment
            finally:
                process.terminate()


def produce(options: argparse.Namespace, environment: dict[str, str]) -> None:
    """Send the texts, and let the last tokens be trainable too."""
    command = [TOKENMILL, "produce", options.topic, *options.texts, *reading(options), "--flush"]
    subprocess.run(command, env=environment, check=True)


def measure(store: Path, topic: str, steps: int) -> None:
    """Read steps of both streams as they come, and print how fast that was."""
    for split in ("train", "validation"):
        batches = opened(store, f"{topic}.{split}")
        count = sum(1 for _ in zip(range(steps), batches, strict=False))
        metrics = batches.metrics
        print(
            f"{split}: {count} batches, {metrics.tokens:,} tokens, {metrics.tokens_per_second:,.0f} tokens a second; "
            f"waited {metrics.store_wait_seconds:.2f} s for text"
        )


def opened(store: Path, stream: str, seconds: float = 120) -> Batches:
    """Open a stream as soon as it is there: the first record that is milled makes it."""
    until = time.monotonic() + seconds
    while True:
        try:
            return Batches(store, stream, batch_size=4, timeout=seconds, passes=ENDLESS)
        except StoreError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    lab.run(main)
