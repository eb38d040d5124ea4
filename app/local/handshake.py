"""Whether a Kafka broker serves clients: one Metadata request on a bare socket.

The request is the oldest version that Kafka 4 still answers, so it works with any broker, and it needs no client
library or event loop. Layout: the Kafka protocol guide, "Metadata API" and "Request header v1".
"""

import socket
import struct

METADATA, VERSION = 3, 1
CLIENT = b"tokenmill"
# Header (API, version, correlation id, client id), then an empty array of topics: none.
REQUEST = struct.pack(f">hhih{len(CLIENT)}si", METADATA, VERSION, 1, len(CLIENT), CLIENT, 0)
SECONDS = 2.0  # for one attempt; a broker on loopback answers within milliseconds


def answers(host: str, port: int) -> bool:
    """Return whether the broker at ``host``:``port`` answers and knows of a live broker (itself) to send clients to.

    A KRaft broker that accepts connections may not have joined its cluster yet; until then it names no broker.
    """
    try:
        with socket.create_connection((host, port), timeout=SECONDS) as link, link.makefile("rb") as replies:
            link.sendall(struct.pack(">i", len(REQUEST)) + REQUEST)
            head = replies.read(12)  # length, correlation id, number of brokers
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">iii", head)[2] > 0  # noqa: PLR2004 - three 4-byte integers
