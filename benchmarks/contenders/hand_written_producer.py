"""JSON lines into a topic, as one writes it by hand: confluent-kafka, one record at a time.

python hand_written_producer.py BOOTSTRAP_SERVERS TOPIC FILE [--parse]
"""

import sys

import orjson
from confluent_kafka import Producer


def main() -> None:
    """Send every line; with ``--parse``, every line whose text is a string."""
    servers, topic, file = sys.argv[1:4]
    parse = "--parse" in sys.argv
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20})
    with open(file, "rb", 1 << 20) as lines:  # noqa: PTH123
        for line in lines:
            line = line.rstrip(b"\n")  # noqa: PLW2901
            if parse and not isinstance(orjson.loads(line).get("text"), str):
                continue
            while True:
                try:
                    producer.produce(topic, line)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    main()
