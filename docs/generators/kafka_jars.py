"""Apache Kafka's jars: resolves `ROOTS` again, and prints a new ``broker.lock.toml`` (`ALONE` as it is).

All jars are downloaded.
"""

import jgo
from jgo.maven import MavenContext

from tokenmill.app.local.broker import sha256_of

ROOTS = (
    "org.apache.kafka:kafka_2.13:4.2.0",  # broker and controller, with the Scala version that Kafka is released with
    "org.slf4j:slf4j-simple:1.7.36",  # Kafka logs through slf4j-api 1.7; without a backend it logs nothing at all
)
ALONE = (
    # Kafka's own command line, of which the examples run the console producer. Without what it pulls in: 47 jars of
    # Connect and its web server, which no tool that sends or reads needs.
    "org.apache.kafka:kafka-tools:4.2.0",
)


def lock() -> str:
    """Return the text of a new lock file: the roots with all that they pull in, and what is alone."""
    lines = ["# Kafka's jars, from `make lock`: what tokenmill/app/local/broker.py fetches and checks. Do not edit."]
    maven = MavenContext()
    single = [maven.project(*name.split(":")[:2]).at_version(name.split(":")[2]).artifact() for name in ALONE]
    for artifact in sorted([*jgo.resolve("+".join(ROOTS)), *single], key=str):
        lines += [
            "",
            "[[jar]]",
            f'group = "{artifact.groupId}"',
            f'artifact = "{artifact.artifactId}"',
            f'version = "{artifact.version}"',
            f'sha256 = "{sha256_of(artifact.resolve())}"',
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(lock(), end="")  # noqa: T201 - the lock is this program's output
