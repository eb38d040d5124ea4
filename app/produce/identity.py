"""What makes two calls of produce the same run: topic, sources, and all options that decide what is sent and when."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from .chunks import CHUNK_BYTES, CHUNK_ENTRIES, CUT
from .order import READERS
from .sources import Source


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as its command names it."""

    run: str
    """16 hexadecimal digits: the same for the same command."""
    sources: str
    """The same while no source has changed."""
    count: int
    """Of the sources."""

    @classmethod
    def of(
        cls, topic: str, sources: Sequence[Source], options: Mapping[str, object], paths: Sequence[str]
    ) -> "Identity":
        """Return the run's identity; it does not depend on the working directory.

        ``options`` are those that decide what is sent and in which order, as JSON types; ``paths`` as somebody gave
        them: that a folder has other files now must not make another run of it, but be noticed.
        """
        named = [path if "://" in path else str(Path(path).absolute()) for path in paths]
        run = xxhash.xxh3_64_hexdigest(_serialized([topic, named, dict(options)]))
        # The order is part of it: a version that cuts or deals otherwise must not go on where another one was.
        state = xxhash.xxh3_128(b"%d %d %d %d" % (CHUNK_BYTES, CHUNK_ENTRIES, CUT, READERS))
        for source in sources:
            state.update(source.name.encode("utf-8", "surrogateescape") + b"\0" + source.signature() + b"\0")
        return cls(run, state.hexdigest(), len(sources))


def _serialized(command: list[object]) -> bytes:
    """Return the same bytes for the same command; names of files may hold bytes that are no UTF-8, as surrogates."""
    try:
        return orjson.dumps(command, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(command, sort_keys=True).encode()  # with escapes for what is not ASCII, surrogates included
