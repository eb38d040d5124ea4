"""Rows of a database as documents, by way of confluent-kafka: a query's first column is the id, its second the text.

    python examples/sqlite_rows.py notes.db "SELECT id, body FROM notes"

The producer is idempotent and its queue is bounded, so a table of any size is sent once, in order, in little memory.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import json
import sqlite3
import sys
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

QUEUED_KB = 64 * 1024  # most that waits to be sent


class Sender:
    """Sends documents to a topic and counts what became of them."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        """Connect in the background."""
        self.sent = 0
        self.failed: list[str] = []
        self._topic = topic
        # For a cluster with logins: security.protocol, sasl.mechanism, sasl.username, … belong here as well.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 20,
                "queue.buffering.max.kbytes": QUEUED_KB,
            }
        )

    def send(self, name: str, text: str) -> None:
        """Send a document; waits while the queue is full."""
        value = json.dumps({"id": name, "text": text}, ensure_ascii=False).encode()
        while True:
            try:
                self._producer.produce(self._topic, value, key=name.encode(), on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def finish(self) -> None:
        """Wait until each document is acknowledged, or given up."""
        self._producer.flush()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.sent += 1
        else:
            self.failed.append(str(error))


def main() -> None:
    """Send what the command line says."""
    parser = argparse.ArgumentParser(description="Rows into Kafka, each as a document.")
    parser.add_argument("database", type=Path)
    parser.add_argument("query", help="its first column is the id, its second the text")
    parser.add_argument("--topic", default="raw-text")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    arguments = parser.parse_args()
    sender = Sender(arguments.bootstrap_servers, arguments.topic)
    connection = sqlite3.connect(f"file:{arguments.database}?mode=ro", uri=True)
    for row in connection.execute(arguments.query):
        sender.send(f"{arguments.database.stem}/{row[0]}", str(row[1]))
    connection.close()
    sender.finish()
    print(f"{sender.sent} documents sent to {arguments.topic}")
    if sender.failed:
        sys.exit(f"{len(sender.failed)} were not: {sender.failed[0]}")


if __name__ == "__main__":
    main()
