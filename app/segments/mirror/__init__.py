"""A full copy of streams and eras on any host, filled from Kafka without a consumer group: ``tokenmill mirror``.

`store_mirror` finds streams and runs everything, `stream_flow` brings one stream's blocks and says what is missing, and
`keep_from` retires what checkpoints do not need. Blocks are appended by the segment worker's own `token_partition`.
"""

from .store_mirror import Mirror
from .stream_flow import MirroredStream

__all__ = ["Mirror", "MirroredStream"]
