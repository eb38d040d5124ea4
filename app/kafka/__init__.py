"""Kafka as a client outside Faust sees it: connections, topics, and what the brokers tell of streams and chains.

`kafka` makes all clients and reads ranges of logs; `security`, `refusal`, `connecting`, `patience` and `calm` are about
getting in, being refused, and waiting, `frames` and `fetched` about receiving and `sending` about sending, for all
clients of the process. `topics` creates and checks what `topic_needs` asks for. `control` reads and settles control
topics, `discovery` finds the streams by them, `messages` and `heads` read token topics.
"""

from .fastpath.connecting import connect_calmly
from .fastpath.fetched_records import unpack_at_once
from .fastpath.receive_buffers import receive_in_place
from .fastpath.send_buffers import send_flat

connect_calmly()
receive_in_place()
send_flat()
unpack_at_once()
