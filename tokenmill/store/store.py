"""A store: a directory tree on one disk that holds a full copy of streams, with an identity of its own.

The identity names the consumer group that fills the store. Two copies with one identity would share a group, and each
would get a part of the blocks. So an identity is bound to its host and directory, and writers refuse a copy. Readers
ignore the identity: they read copies, on any host.
"""

import os
import shlex
import socket
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError, DiskError, FingerprintError, StoreError
from tokenmill.store.layout import (
    FORMAT,
    GOES_ON,
    STORE_FILE,
    STREAM_FILE,
    TEMPORARY,
    TOKENIZER_FILE,
    PartitionLock,
    StorePath,
    blaming,
    description_damaged,
    partition_directory,
    partition_numbers,
    put_file,
    store_directory,
    stream_directory,
    sync_directory,
    sync_way_to,
)
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import MAX_JSON_BYTES, read_json_file, read_regular


@dataclass(frozen=True, slots=True)
class Store:
    """A store that may be written to by this host."""

    path: Path
    id: str
    """A random UUID; part of the consumer group's name."""

    @classmethod
    def open(cls, path: StorePath) -> Self:
        """Open a store for writing.

        Raises:
            StoreError: the directory is no store, or its identity belongs to another host or directory.
            DiskError: its identity cannot be read.

        """
        path = store_directory(path)
        with blaming(path):
            return cls._open(path)

    @classmethod
    def _open(cls, path: Path) -> Self:
        file = path / STORE_FILE
        try:
            identity = read_json_file(file)
        except FileNotFoundError:
            raise StoreError(f"{path} is no store: it has no {STORE_FILE}; give the directory that has one") from None
        except (ValueError, DamagedError) as error:
            raise StoreError(f"{file} is not JSON ({error}); {_adopt(path)} gives the store a new identity") from error
        known = isinstance(identity, dict) and identity.get("format") == FORMAT
        if not known or not isinstance(identity.get("id"), str):
            raise StoreError(
                f"{file} is no identity of format {FORMAT}; use the version of tokenmill that wrote it, or "
                f"{_adopt(path)}, which gives the store a new one"
            )
        owner, here = (identity.get("host"), identity.get("directory")), _here(path)
        if owner != here:
            raise StoreError(
                f"the store {path} says that it is {owner[0]}:{owner[1]}, but this is {here[0]}:{here[1]}. If it was "
                f"moved here, or is a copy, run {_adopt(path)}: it gets an identity (and a consumer group) of its own "
                "and keeps what it holds"
            )
        return cls(path, identity["id"])

    @classmethod
    def open_or_create(cls, path: StorePath) -> Self:
        """Open a store for writing; a directory without identity gets a new one, and keeps the streams that it holds.

        Raises:
            StoreError: the identity belongs to another host or directory.
            DiskError: the directory cannot be made, read or written to.

        """
        path = store_directory(path)
        with blaming(path):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / STORE_FILE).exists():
                _create_identity(path)
            sync_way_to(path)  # always: its creator may have died before the sync
        return cls.open(path)

    def require(self) -> None:
        """Check that this very store is still in its place; the empty mount point of an unmounted disk is not.

        Raises:
            DiskError: nothing, or another store, is there.

        """
        try:
            there = self.open(self.path).id
        except DiskError:
            raise
        except StoreError:
            there = None
        if there != self.id:
            raise DiskError(
                f"{self.path} no longer holds the store {self.id}: mount its disk again, or move it back: {GOES_ON}. "
                "To begin a new store here, stop the service and start it again"
            )

    @classmethod
    def adopt(cls, path: StorePath) -> Self:
        """Give a copied or moved store a new identity, bound to this host and directory, whatever it had before.

        It is durable when this returns. What the store holds stays as it is.

        Raises:
            StoreError: the directory holds neither an identity nor a stream, so it is no store.
            LockedError: a process writes to it.

        """
        path = store_directory(path)
        if not (path / STORE_FILE).exists() and not streams_in(path):
            raise StoreError(f"{path} is no store: it has no {STORE_FILE} and no stream; give the directory of one")
        with ExitStack() as locks:
            for stream in streams_in(path):
                locks.enter_context(PartitionLock(stream_directory(path, stream)))
                for partition in partitions_in(path, stream):
                    locks.enter_context(PartitionLock(partition_directory(path, stream, partition)))
            put_file(path / STORE_FILE, _identity(path, uuid.uuid4().hex))
        return cls.open(path)

    def add_stream(self, info: StreamInfo, tokenizer: bytes | None) -> StreamInfo:
        """Put a stream's description and tokenizer file (None for raw bytes) into the store, durably.

        Where the stream is there already, nothing happens. Returns the description that the store holds.

        Raises:
            FingerprintError: the store holds a stream of that name with another fingerprint or other segments.
            DiskError: the store cannot be read or written to.

        """
        with blaming(self.path):
            return self._add_stream(info, tokenizer)

    def _add_stream(self, info: StreamInfo, tokenizer: bytes | None) -> StreamInfo:
        directory = stream_directory(self.path, info.name)
        if (directory / STREAM_FILE).exists():
            known = read_stream(self.path, info.name)
            if (known.fingerprint, known.segment_blocks) != (info.fingerprint, info.segment_blocks):
                raise FingerprintError(
                    f"{directory} holds a stream made with other settings ({known.differences(info)}): use another "
                    "store, or a new stream name"
                )
            sync_directory(directory)  # its writer may have died before the sync
            return known
        directory.mkdir(exist_ok=True)
        sync_directory(self.path)
        if tokenizer is not None:
            _put_shared(directory / TOKENIZER_FILE, tokenizer)
        _put_shared(directory / STREAM_FILE, info.encode())
        return info


def read_stream(store: StorePath, stream: str) -> StreamInfo:
    """Return a stream's description in a store, or in a copy of one.

    Raises:
        StoreError: the directory holds no such stream, or one of another format.
        DiskError: it may not be read, or its disk fails.
        DamagedError: the stream's description was changed.

    """
    store = store_directory(store)
    directory = stream_directory(store, stream)
    try:
        data = read_regular(directory / STREAM_FILE, most=MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if (store / STREAM_FILE).exists():
            raise StoreError(f"{store} is the folder of a stream: give the one that it is in, {store.parent}") from None
        known = ", ".join(streams_in(store)) or "none"
        raise StoreError(
            f"the store {store} holds no stream {stream!r} (streams there: {known}); check both names, and whether "
            "anything fills this store: a segment worker, a mirror, or `tokenmill pack`"
        ) from None
    except OSError as error:
        raise DiskError(
            f"{directory / STREAM_FILE} cannot be read ({error.strerror}): let this user read it, or repair its disk"
        ) from error
    try:
        info = StreamInfo.decode(data)
    except DamagedError as error:
        raise description_damaged(directory / STREAM_FILE, error.what) from error
    except StoreError as error:
        raise StoreError(f"{directory / STREAM_FILE}: {error}") from error
    if info.name != stream:
        raise StoreError(f"{directory} holds the stream {info.name!r}: give the directory that name again")
    return info


def streams_in(store: StorePath) -> list[str]:
    """Return the names of the streams in a store; none where there is no such directory."""
    return sorted(file.parent.name for file in store_directory(store).glob(f"*/{STREAM_FILE}"))


def partitions_in(store: StorePath, stream: str) -> list[int]:
    """Return the partitions of a stream that the store holds something of, in order."""
    return partition_numbers(path.name for path in stream_directory(store_directory(store), stream).iterdir())


def _here(path: Path) -> tuple[str, str]:
    return socket.gethostname(), str(path.resolve())


def _adopt(path: Path) -> str:
    return f"`{shlex.join(['tokenmill', 'adopt', '--store', str(path)])}`"


def _identity(path: Path, identity: str) -> bytes:
    host, directory = _here(path)
    return canonical_json({"format": FORMAT, "id": identity, "host": host, "directory": directory}) + b"\n"


def _put_shared(path: Path, data: bytes) -> None:
    """Put a file in its place while other processes may be doing so with the same content."""
    mine = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    put_file(mine, data)
    mine.rename(path)
    sync_directory(path.parent)


def _create_identity(path: Path) -> None:
    """Write a new identity, unless another process is quicker; the first one counts."""
    identity = uuid.uuid4().hex
    mine = path / f"{STORE_FILE}.{identity}{TEMPORARY}"
    put_file(mine, _identity(path, identity))
    try:
        os.link(mine, path / STORE_FILE)  # unlike a rename, this fails where the name is taken
    except FileExistsError:
        pass
    finally:
        mine.unlink()
