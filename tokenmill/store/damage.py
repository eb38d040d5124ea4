"""The errors for committed bytes that are missing or changed: where, what, and the command that repairs it."""

import shlex
from pathlib import Path
from typing import Final

from tokenmill.errors import DamagedError
from tokenmill.store.layout import REPAIR_DIRECTORY

MISSING: Final = "it is missing"
"""What is wrong with a file that was removed: "0 bytes" would look like a disk that was full."""


def too_short(path: Path, size: int, wanted: int) -> str:
    """Return what is wrong with a file of ``size`` bytes, 0 where there is none, of which ``wanted`` were committed."""
    return f"it has {size} bytes, but {wanted} were committed" if size or path.exists() else MISSING


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to a file of a partition, ``<store>/<stream>/<partition>/<file>``.

    The repair is the same for every file: a store is a copy of the token topic, and so are other stores of the stream.
    """
    parents = list(path.absolute().parents)
    partition, stream, store = parents[1:4] if path.parent.name == REPAIR_DIRECTORY else parents[:3]
    command = shlex.join(["tokenmill", "repair", stream.name, partition.name, "--store", str(store)])
    return DamagedError(
        f"{path}: {what}",
        f"To repair it, run `{command}`, which rebuilds what is damaged from the token topic (or, with --from, from "
        "another store) and keeps the damaged files beside it. A segment worker that halted the partition "
        "then goes on by itself; one that still writes there must be stopped meanwhile",
    )
