"""What a run over a bucket will need, by arithmetic from its heads alone: ``tokenmill mirror --dry-run --from``."""

from pathlib import Path
from typing import NamedTuple

from tokenmill.bucket.cache import CacheFolder
from tokenmill.bucket.fetching import HeadLog, RemoteSegment, stream_of
from tokenmill.bucket.objects import Bucket


class RunNeeds(NamedTuple):
    """What one pass over a stream, or a mirror of it, takes out of a bucket; bytes are of tokens."""

    eras: int
    segments: int
    requests: int
    bytes: int
    cache: int
    """Bytes of the two eras behind each other that have most segments."""
    first: int
    """Bytes before the first batch."""
    rate: float | None
    """Bytes a second with which each era is there when the one before ends; None: no speed was given."""


def needs_of(bucket: Bucket, stream: str, tokens_per_second: float | None) -> RunNeeds:
    """Return what a run needs that takes so many tokens a second.

    Raises BucketError where the bucket holds no such stream, does not answer, or its heads are none.
    """
    heads = HeadLog(stream_of(bucket, stream))
    heads.look(bucket)
    info, folder = heads.info, CacheFolder(Path(), heads.info)
    cache = first = 0
    rate = 0.0
    before: set[tuple[int, int]] = set()
    seconds = 0.0
    for era in heads.eras:
        now = {place for place in folder.segments([era]) if place in heads.segments}
        cache = max(cache, len(now | before))
        if tokens_per_second and seconds:
            rate = max(rate, folder.bytes(len(now - before)) / seconds)
        first = first or folder.bytes(len(now))
        before, seconds = now, era.blocks * info.block_tokens / (tokens_per_second or 1)
    files = [len(RemoteSegment(bucket, info, one).ends) + 1 for one in heads.segments.values()]
    size = sum(one.stop - one.first for one in heads.segments.values()) * info.block_bytes
    requests = sum(files) + heads.next_number + 3  # the heads' list, description and tokenizer
    speed = rate if tokens_per_second else None
    return RunNeeds(len(heads.eras), len(files), requests, size, folder.bytes(cache), first, speed)
