"""What this process really does to files, call by call, and all that a power loss can leave of it.

`Recording`: the calls of `os` that change or sync files are replaced by methods that note what they do, and can fail;
nothing is really synced. That nothing goes past them is shown twice: the record, replayed, is the real tree, byte for
byte (`test_power_loss.py`), and strace sees a real process make the same calls (`test_step_kills.py`).

`crash_states`: what a file was told to hold is durable after the first sync of that file that follows, and a name after
the first sync of its directory (a file's sync promises nothing about its name: POSIX's words, and more than most file
systems do to us). Before that, each change for itself is there or not, and a write may be there in part: its first
bytes, some of its sectors, or only the length that it gave the file. A rename is there or not, never by half. Where the
sync after a change was answered with an error, no later one helps: the system has forgotten that there was something to
write.
"""

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

import pytest

Kind = Literal["create", "mkdir", "rmdir", "rename", "link", "unlink", "write", "truncate", "sync"]
Naming = Literal["mkdir", "rmdir", "unlink", "rename", "link"]
NAMINGS: Final[tuple[Naming, ...]] = get_args(Naming)
SYNCS: Final = ("fsync", "fdatasync")
CALLS: Final = ("open", *NAMINGS, "pwrite", "truncate", "ftruncate", *SYNCS)
"""The calls that are noted and can fail. An `open` is one if it may create or empty a file."""
NOBODY: Final = -1  # the node of what is no file
Fail = Callable[[str, int], int | None]  # given a call and its number, from 1: the error that it fails with, or None


class Op(NamedTuple):
    kind: Kind
    node: int  # the file; it keeps its number under every name. `NOBODY`: a directory
    path: str  # the name that is made, changed or removed; where a rename leads; the directory that is synced
    source: str = ""  # the name that a rename takes away
    offset: int = 0  # of a write; the new size of a truncation
    data: bytes = b""
    failed: bool = False
    """Whether it is a sync that was answered with an error: what came before it may be lost, whatever follows."""


class Recording:
    """The record of what happens below ``root`` inside `running`; paths in it are relative to it."""

    def __init__(self, root: Path, fail: Fail = lambda _call, _number: None) -> None:
        self.root = root
        self.ops: list[Op] = []
        self.calls: list[str] = []
        self.failed: list[str] = []  # the calls that were made to fail
        self._fail = fail
        self._nodes: dict[str, int] = {}
        self._descriptors: dict[int, tuple[int, str]] = {}
        self._created = 0
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*CALLS, "close")}

    def start_from(self, tree: Mapping[str, bytes | None]) -> None:
        """Take all that the directory holds, parents before what is in them, for durable."""
        for path, content in tree.items():
            if content is None:
                self.ops += [Op("mkdir", NOBODY, path)]
            else:
                node = self._nodes[path] = self._created
                self._created += 1
                self.ops += [Op("create", node, path), Op("write", node, path, data=content), Op("sync", node, path)]
            self.ops.append(Op("sync", NOBODY, str(PurePath(path).parent)))

    @contextmanager
    def running(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for naming in NAMINGS:
                patch.setattr(os, naming, partial(self._named, naming))
            for sync in SYNCS:
                patch.setattr(os, sync, partial(self._sync, sync))
            for call in ("open", "close", "pwrite", "truncate", "ftruncate"):
                patch.setattr(os, call, getattr(self, call))
            yield

    def open(self, path: Any, flags: int, *mode: int, **more: Any) -> int:
        name = self._name(path)
        if name is None:
            return int(self._real["open"](path, flags, *mode, **more))
        if flags & (os.O_CREAT | os.O_TRUNC):
            self._ask("open")
        descriptor = int(self._real["open"](path, flags, *mode, **more))
        if flags & os.O_CREAT and name not in self._nodes:
            self._nodes[name] = self._created
            self._created += 1
            self.ops.append(Op("create", self._nodes[name], name))
        elif flags & os.O_TRUNC:
            self.ops.append(Op("truncate", self._nodes[name], name))
        self._descriptors[descriptor] = self._nodes.get(name, NOBODY), name
        return descriptor

    def close(self, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)
        self._real["close"](descriptor)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        """Note what was written; a write that fails has written its first half."""
        if descriptor not in self._descriptors:
            return int(self._real["pwrite"](descriptor, data, offset))
        node, name = self._descriptors[descriptor]
        try:
            self._ask("pwrite")
        except OSError:
            half = bytes(data)[: len(data) // 2]
            self.ops.append(Op("write", node, name, offset=offset, data=half))
            self._real["pwrite"](descriptor, half, offset)
            raise
        self.ops.append(Op("write", node, name, offset=offset, data=bytes(data)))
        return int(self._real["pwrite"](descriptor, data, offset))

    def truncate(self, path: Any, size: int) -> None:
        name = self._name(path)
        if name is not None:
            self._ask("truncate")
            self.ops.append(Op("truncate", self._nodes[name], name, offset=size))
        self._real["truncate"](path, size)

    def ftruncate(self, descriptor: int, size: int) -> None:
        if descriptor in self._descriptors:
            self._ask("ftruncate")
            self.ops.append(Op("truncate", *self._descriptors[descriptor], offset=size))
        self._real["ftruncate"](descriptor, size)

    def _sync(self, call: str, descriptor: int) -> None:
        """Note a sync, and do none; `fdatasync` syncs the size too, as far as it is needed to read the data back."""
        if descriptor not in self._descriptors:
            return
        node, name = self._descriptors[descriptor]
        try:
            self._ask(call)
        except OSError:
            self.ops.append(Op("sync", node, name, failed=True))
            raise
        self.ops.append(Op("sync", node, name))

    def _named(self, call: Naming, first_path: Any, *others: Any, **more: Any) -> None:
        """Do, and note, what changes names: of a directory that exists already, mkdir fails, and is no change."""
        first = self._name(first_path)
        name = self._name(others[0]) if call in {"rename", "link"} else first
        if name is not None:
            self._ask(call)
        self._real[call](first_path, *others, **more)
        if name is None or first is None:
            return
        node = NOBODY if call in {"mkdir", "rmdir"} else self._nodes[first]
        if call in {"unlink", "rename"}:
            del self._nodes[first]
        if call in {"rename", "link"}:
            self._nodes[name] = node
        self.ops.append(Op(call, node, name, source=first if call == "rename" else ""))

    def _ask(self, call: str) -> None:
        self.calls.append(call)
        code = self._fail(call, len(self.calls))
        if code is not None:
            self.failed.append(call)
            raise OSError(code, os.strerror(code))

    def _name(self, path: Any) -> str | None:
        if isinstance(path, int):
            return None
        absolute = Path(path).absolute()
        return str(absolute.relative_to(self.root)) if absolute.is_relative_to(self.root) else None


SECTOR: Final = 32
"""Bytes that are written as one, if at all: far less than a disk's, because the blocks of tests are small as well."""
Tree = Mapping[str, bytes | None]  # the content of each file by its path; None: a directory


class Part(NamedTuple):
    pieces: tuple[tuple[int, int], ...] = ()
    """Of a write: the bytes from and to; what is between them is zero, or what was there."""
    full_size: bool = False  # whether a file that the write makes longer is as long as that


WHOLE: Final = Part()
ABSENT: Final = Part()


def tree_of(ops: Iterable[Op], parts: Mapping[int, Part] = MappingProxyType({})) -> Tree:
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
    known = {*names, "."}
    there = sorted(path for path in names if known.issuperset(map(str, PurePath(path).parents)))
    return {path: None if names[path] == NOBODY else bytes(files.get(names[path], b"")) for path in there}


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
    some = (tuple(map(rng.choice, choices)) for _ in range(most))
    seen = set()
    for parts in itertools.product(*choices) if everything else some:
        tree = tree_of(ops, dict(zip(open_, parts, strict=True)))
        if (key := tuple(tree.items())) not in seen:
            seen.add(key)
            yield tree


def put_tree(root: Path, tree: Tree) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def real_tree(root: Path) -> Tree:
    paths = sorted(root.rglob("*"), key=str)
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in paths}


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
    if op.kind != "write" or not op.data:
        return [ABSENT, WHOLE]
    cut = rng.randrange(len(op.data))
    sectors = [(at, min(at + SECTOR, len(op.data))) for at in range(0, len(op.data), SECTOR)]
    some = tuple(sector for sector in sectors if rng.random() < 0.5)
    return [ABSENT, WHOLE, Part(((0, cut),)), Part(some, full_size=rng.random() < 0.5), Part(full_size=True)]
