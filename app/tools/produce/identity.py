"""What makes two calls of produce the same run: topic, paths, and all options that decide what is sent and when."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from .sources import Reading


@dataclass(frozen=True, slots=True)
class Identity:
    """A run, as its command names it."""

    run: str
    """16 hexadecimal digits: the same for the same command."""

    @classmethod
    def of(cls, topic: str, options: Mapping[str, object], paths: Sequence[str]) -> "Identity":
        """Return the run's identity; it does not depend on the working directory.

        ``options`` are those that decide what is sent and in which order, as JSON types; ``paths`` as somebody gave
        them: that a folder has other files now must not make another run of it, but be noticed.
        """
        named = [path if "://" in path else str(Path(path).absolute()) for path in paths]
        return cls(xxhash.xxh3_64_hexdigest(_serialized([topic, named, dict(options)])))


def deciding(reading: Reading, split: str | None, shuffle: int, seed: int) -> dict[str, object]:
    """Return the options that decide what is sent and in which order, as JSON types."""
    shape = reading.shape
    # Only where they are given: what older versions began goes on.
    listed = reading.mapping is not None and reading.mapping.batch is not None
    given = {"delimiter": reading.delimiter, "encoding": reading.encoding, "map_lists": listed or None}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "format": reading.choice,
        "map": None if reading.mapping is None else reading.mapping.name,
        "split": split,
        "shuffle": [shuffle, seed] if shuffle else None,
        **shape.deciding(),
    }


def _serialized(command: list[object]) -> bytes:
    """Return the same bytes for the same command; names of files may hold bytes that are no UTF-8, as surrogates."""
    try:
        return orjson.dumps(command, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(command, sort_keys=True).encode()  # with escapes for what is not ASCII, surrogates included
