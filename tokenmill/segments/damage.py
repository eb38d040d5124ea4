"""What is said when committed bytes are missing or changed: where, what, and the way back."""

from pathlib import Path

from tokenmill.errors import DamagedError


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to a segment's file.

    The way back is the same for every file: a store is a copy of the token topic, and a writer goes on after the last
    segment that is there.
    """
    first = path.name.partition(".")[0]
    return DamagedError(
        f"{path}: {what}. A store is a copy of the token topic: stop the segment worker, move {first}.* and all later "
        f"segments out of {path.parent}, and start it again; it writes them anew, byte for byte"
    )
