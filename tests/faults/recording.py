"""What this process really does to the files below a directory, call by call, and calls that fail.

The calls of `os` that change or sync files are replaced by methods that note what they do; nothing is really synced.
That nothing goes past them is shown twice: the record, replayed, is the real tree, byte for byte
(`test_power_loss.py`), and strace sees a real process make the same calls (`test_step_kills.py`).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, Literal, NamedTuple, get_args

import pytest

Kind = Literal["create", "mkdir", "rmdir", "rename", "link", "unlink", "write", "truncate", "sync"]
Naming = Literal["mkdir", "rmdir", "unlink", "rename", "link"]
NAMINGS: Final[tuple[Naming, ...]] = get_args(Naming)
SYNCS: Final = ("fsync", "fdatasync")
CALLS: Final = ("open", *NAMINGS, "pwrite", "truncate", "ftruncate", *SYNCS)
"""The calls that are noted and can fail. An `open` is one if it may create or empty a file."""
NOBODY: Final = -1
"""The node of what is no file."""
Fail = Callable[[str, int], int | None]
"""Given a call and its number, from 1: the error that it fails with, or None."""


class Op(NamedTuple):
    """One change, or one sync."""

    kind: Kind
    node: int
    """The file; it keeps its number under every name. `NOBODY`: a directory."""
    path: str
    """The name that is made, changed or removed; where a rename leads; the directory that is synced."""
    source: str = ""
    """The name that a rename takes away."""
    offset: int = 0
    """Of a write; the new size of a truncation."""
    data: bytes = b""
    failed: bool = False
    """Whether it is a sync that was answered with an error: what came before it may be lost, whatever follows."""


class Recording:
    """The record of what happens below ``root`` inside `running`; paths in it are relative to it."""

    def __init__(self, root: Path, fail: Fail = lambda _call, _number: None) -> None:
        """Begin with an empty directory."""
        self.root = root
        self.ops: list[Op] = []
        self.calls: list[str] = []
        self.failed: list[str] = []
        """The calls that were made to fail."""
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
        """Record."""
        noted: dict[str, Callable[..., Any]] = {
            **{call: partial(self._named, call) for call in NAMINGS},
            **{call: partial(self._sync, call) for call in SYNCS},
            **{call: getattr(self, call) for call in ("open", "close", "pwrite", "truncate", "ftruncate")},
        }
        with pytest.MonkeyPatch.context() as patch:
            for call, note in noted.items():
                patch.setattr(os, call, note)
            yield

    def open(self, path: Any, flags: int, *mode: int, **more: Any) -> int:
        """Note a file that is created or emptied, and remember which file a descriptor is of."""
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
        """Forget which file it was of."""
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
        """Note a new size."""
        name = self._name(path)
        if name is not None:
            self._ask("truncate")
            self.ops.append(Op("truncate", self._nodes[name], name, offset=size))
        self._real["truncate"](path, size)

    def ftruncate(self, descriptor: int, size: int) -> None:
        """Note a new size."""
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
