"""What the builder of a data set knows before anything is read: for `--dry-run`, and to tell whether it has changed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A split, as far as it is known."""

    rows: int | None = None
    bytes: int | None = None
    """Of its rows in memory, as Arrow holds them."""


@dataclass(slots=True)
class Known:
    """What is known of a data set."""

    name: str
    features: dict[str, str] | None = None
    """Columns and their types; None: known when a row is read."""
    splits: dict[str, Part] = field(default_factory=dict)
    download: int | None = None
    """Bytes of the files that hold it."""
    why_not: str = ""
    """Why nothing is known."""


def known_of_builder(name: str, builder: Any) -> Known:
    """Return what a builder of the library knows."""
    info = builder.info
    splits = {
        str(split): Part(found.num_examples or None, found.num_bytes or None)
        for split, found in (info.splits or {}).items()
    }
    for split in getattr(builder.config, "data_files", None) or {}:
        splits.setdefault(str(split), Part())
    download = info.download_size or sum(size for _, size in files_of(builder) if size) or None
    return Known(name, _features(info.features), splits, download)


def known_of_saved(name: str, opened: Any) -> Known:
    """Return what a folder that ``save_to_disk`` wrote holds: one data set, or one for each split."""
    splits = opened if isinstance(opened, dict) else {str(opened.split or "all"): opened}
    first = next(iter(splits.values()), None)
    parts = {str(split): Part(data.num_rows, data.data.nbytes) for split, data in splits.items()}
    return Known(name, None if first is None else _features(first.features), parts)


def files_of(builder: Any) -> Iterator[tuple[str, int | None]]:
    """Yield what tells whether a file of a builder has changed (name, time, tag, commit), and its size on disk."""
    for split, files in (getattr(builder.config, "data_files", None) or {}).items():
        yield f"{split} {getattr(files, 'origin_metadata', ())}", None
        for file in files:
            path = Path(file)
            size = path.stat().st_size if path.is_file() else None
            yield f"{file} {size}", size


def _features(features: Any) -> dict[str, str] | None:
    if not features:
        return None
    return {str(name): str(getattr(feature, "dtype", None) or feature) for name, feature in features.items()}
