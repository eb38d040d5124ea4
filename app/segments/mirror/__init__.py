"""A full copy of streams and eras on any host, filled from Kafka without a consumer group: ``tokenmill mirror``.

`finding` looks for streams and partitions, `flow` brings one stream's blocks (with the segment worker's own
`tokens.partition`), `behind` says how much is missing, `keeping` retires what checkpoints do not need, and `run` does
all of it together.
"""

from .behind import Behind
from .run import Mirror

__all__ = ["Behind", "Mirror"]
