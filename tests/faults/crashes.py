"""Every state in which a power loss can leave the files of a `Recording`.

What a file was told to hold is durable after the first sync of that file that follows, and a name after the first sync
of its directory (a file's sync promises nothing about its name: POSIX's words, and more than most file systems do to
us). Before that, each change for itself is there or not, and a write may be there in part: its first bytes, some of its
sectors, or only the length that it gave the file. A rename is there or not, never by half. Where the sync after a
change was answered with an error, no later one helps: the system has forgotten that there was something to write.
"""

import itertools
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from tests.faults.recording import NOBODY, Op

SECTOR: Final = 32
"""Bytes that are written as one, if at all: far less than a disk's, because the blocks of tests are small as well."""
Tree = Mapping[str, bytes | None]
"""The content of each file by its path; None: a directory."""


class Part(NamedTuple):
    """How much of a change is there."""

    name: str
    pieces: tuple[tuple[int, int], ...] = ()
    """Of a write: the bytes from and to; what is between them is zero, or what was there."""
    full_size: bool = False
    """Whether a file that the write makes longer is as long as that."""


WHOLE: Final = Part("whole")
ABSENT: Final = Part("absent")
NOTHING: Final[Mapping[int, Part]] = {}


def tree_of(ops: Iterable[Op], parts: Mapping[int, Part] = NOTHING) -> Tree:
    """Return what the changes leave; all are whole but those that ``parts`` names by their index."""
    files: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for index, op in enumerate(ops):
        part = parts.get(index, WHOLE)
        if part is ABSENT:
            continue
        if op.kind == "write":
            _write(files.setdefault(op.node, bytearray()), op, part)
        elif op.kind == "truncate":
            content = files.setdefault(op.node, bytearray())
            content[op.offset :] = bytes(max(0, op.offset - len(content)))
        elif op.kind in {"unlink", "rmdir"}:
            names.pop(op.path, None)
        elif op.kind != "sync":
            names.pop(op.source, None)
            names[op.path] = op.node
    there = {
        path for path in names if all(str(above) in names or str(above) == "." for above in PurePath(path).parents)
    }
    return {path: None if names[path] == NOBODY else bytes(files.get(names[path], b"")) for path in sorted(there)}


def unsettled(ops: Sequence[Op]) -> list[int]:
    """Return the indexes of the changes that a power loss after all of ``ops`` may take back, or leave in part."""
    found = []
    waiting: dict[tuple[int, str], list[int]] = {}
    for index, op in enumerate(ops):
        if op.kind != "sync":
            waiting.setdefault(_synced_by(op), []).append(index)
        elif op.failed and op.node != NOBODY:  # a directory's names are in a journal, and written again with the next
            found += waiting.pop((op.node, ""), [])
        elif not op.failed:
            waiting.pop((op.node, op.path if op.node == NOBODY else ""), None)
    return sorted(itertools.chain(found, *waiting.values()))


def crash_states(ops: Sequence[Op], rng: random.Random, most: int) -> Iterator[Tree]:
    """Return different states that a power loss after ``ops`` can leave: all of them, or ``most`` if there are more."""
    open_ = unsettled(ops)
    choices = [_parts_of(ops[index], rng) for index in open_]
    everything = prod(len(parts) for parts in choices) <= most
    chosen: Iterable[Sequence[Part]] = (
        itertools.product(*choices) if everything else ([rng.choice(parts) for parts in choices] for _ in range(most))
    )
    seen = set()
    for parts in chosen:
        tree = tree_of(ops, dict(zip(open_, parts, strict=True)))
        key = tuple(tree.items())
        if key not in seen:
            seen.add(key)
            yield tree


def put_tree(root: Path, tree: Tree) -> None:
    """Make ``root`` hold this and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def real_tree(root: Path) -> Tree:
    """Return what a directory really holds."""
    found: dict[str, bytes | None] = {}
    for directory, names, files in os.walk(root):
        for name in names:
            found[str((Path(directory) / name).relative_to(root))] = None
        for name in files:
            found[str((Path(directory) / name).relative_to(root))] = (Path(directory) / name).read_bytes()
    return dict(sorted(found.items()))


def _synced_by(op: Op) -> tuple[int, str]:
    """Return what must be synced to make a change durable: a file, or the directory of a name."""
    if op.kind in {"write", "truncate"}:
        return op.node, ""
    return NOBODY, str(PurePath(op.path).parent)


def _write(content: bytearray, op: Op, part: Part) -> None:
    end = op.offset + len(op.data)
    pieces = ((0, len(op.data)),) if part is WHOLE else part.pieces
    size = end if part is WHOLE or part.full_size else max((op.offset + stop for _, stop in pieces), default=0)
    content.extend(bytes(max(0, size - len(content))))
    for start, stop in pieces:
        content[op.offset + start : op.offset + stop] = op.data[start:stop]


def _parts_of(op: Op, rng: random.Random) -> list[Part]:
    """Return how much of a change may be there."""
    if op.kind != "write" or not op.data:
        return [ABSENT, WHOLE]
    cut = rng.randrange(len(op.data))
    sectors = [(at, min(at + SECTOR, len(op.data))) for at in range(0, len(op.data), SECTOR)]
    some = tuple(sector for sector in sectors if rng.random() < 0.5)
    return [
        ABSENT,
        WHOLE,
        Part("torn", ((0, cut),)),
        Part("in sectors", some, full_size=rng.random() < 0.5),
        Part("length alone", full_size=True),
    ]
