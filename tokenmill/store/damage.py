"""The errors for committed bytes that are missing or changed: where, what, and the command that repairs it.

What helps depends on what filled the stream: the service, from Kafka, or `tokenmill pack`, from files.
"""

import shlex
from pathlib import Path
from typing import Final

from tokenmill.errors import DamagedError
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE, PACK_DIRECTORY, REPAIR_DIRECTORY

MISSING: Final = "it is missing"
"""What is wrong with a file that was removed: "0 bytes" would look like a disk that was full."""
OTHER_STORE: Final = "another store: a copy, or one that the same `tokenmill pack` command fills from the same files"
"""What a packed store can be repaired from, where its own bytes are not enough."""
ERA_ADVICE: Final = (
    f"Stop the segment worker, move {ERA_LINES_FILE} and {ERA_INDEX_FILE} away, and start it again: it writes both "
    "again from the control topic (or copy both from another store of the stream)"
)
"""What to do about damaged eras."""
PACKED_ERA_ADVICE: Final = (
    f"Move {ERA_LINES_FILE} and {ERA_INDEX_FILE} away, and call the same `tokenmill pack` command again: it writes "
    "both again (or copy both from another store of the stream)"
)
"""The same, of a stream that was packed."""


def is_packed(store: Path, stream: str) -> bool:
    """Return whether `tokenmill pack` filled a stream: its state is in the store, named as the stream without split."""
    names = [path.name for path in (store / PACK_DIRECTORY).glob("*")]
    parts = ((name[:at], name[at:]) for name in names for at in range(1, len(name) + 1))
    return any(stream.startswith(f"{topic}.") and stream.endswith(suffix) for topic, suffix in parts)


def comparing(store: Path, stream: str) -> str:
    """Return what compares a stream with what it was made of."""
    if is_packed(store, stream):
        return "the same `tokenmill pack` command with --verify compares the store with its files"
    return "`tokenmill verify` compares the store with its topics"


def ending(store: Path, stream: str) -> str:
    """Return the command that marks the end of a stream."""
    return "`tokenmill pack … --end`" if is_packed(store, stream) else "`tokenmill close`"


def too_short(path: Path, size: int, wanted: int) -> str:
    """Return what is wrong with a file of ``size`` bytes, 0 where there is none, of which ``wanted`` were committed."""
    return f"it has {size} bytes, but {wanted} were committed" if size or path.exists() else MISSING


def damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to a file of a partition, ``<store>/<stream>/<partition>/<file>``."""
    return DamagedError(f"{path}: {what}", repair_advice(path.parent))


def repair_advice(partition: Path) -> str:
    """Return what to do about damage in a partition's directory, which is the same for every file.

    A store is a copy of the token topic, or of the same files' blocks, and so are other stores of the stream.
    """
    directory = partition.parent if partition.name == REPAIR_DIRECTORY else partition
    number, stream, store = directory.name, directory.parent.name, directory.absolute().parents[1]
    source, worker = (
        "from the token topic (or, with --from, from another store)",
        (
            ". A segment worker that halted the partition then goes on by itself; one that still writes there must be "
            "stopped meanwhile"
        ),
    )
    if is_packed(store, stream):
        source, worker = f"from its own undamaged bytes (or, with --from, from {OTHER_STORE})", ""
    return (
        f"To repair it, run `{_repair(store, stream, number)}`, which rebuilds what is damaged {source} and keeps the "
        f"damaged files beside it{worker}"
    )


def description_damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to ``<store>/<stream>/stream.json``."""
    store, stream = path.parents[1], path.parent.name
    source = "the control topic has it (or, with --from, another store)"
    advice = f"`{_repair(store, stream)}` writes it again as {source}"
    if is_packed(store, stream):
        advice = f"`{_repair(store, stream)} --from DIRECTORY` writes it again as it is in {OTHER_STORE}"
    return DamagedError(f"{path}: {what}", advice)


def eras_damaged(path: Path, what: str) -> DamagedError:
    """Return the error for damage to the eras of a stream, ``<store>/<stream>/eras.…``."""
    packed = is_packed(path.parents[1], path.parent.name)
    return DamagedError(f"{path}: {what}", PACKED_ERA_ADVICE if packed else ERA_ADVICE)


def _repair(store: Path, stream: str, *partition: str) -> str:
    return shlex.join(["tokenmill", "repair", stream, *partition, "--store", str(store)])
