"""A store: a directory tree on one disk that holds a full copy of streams, with an identity of its own.

The identity names the consumer group that fills the store. Two copies with one identity would share a group, and each
would get a part of the blocks. So an identity is bound to its host and directory, and writers refuse a copy. Readers
ignore the identity: they read copies, on any host.

``stream.json`` describes a stream, and ``start.json`` says where a partition begins, with the chain hash before that,
which is nowhere else in the store (docs/format.md).
"""

import os
import shlex
import socket
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, DiskError, FingerprintError, StoreError, TokenMillError
from tokenmill.recipe import RAW_BYTES_SHA256, Genesis, canonical_json, differences
from tokenmill.store import layout
from tokenmill.store.layout import StorePath
from tokenmill.untrusted import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, parse_json, read_json_file, read_regular
from tokenmill.wire.chain import HASH_BYTES, genesis_hash

_DTYPES = ("uint8", "uint16", "uint32")
MOST_BUCKET_BYTES: Final = 128 << 20
"""Of the tokens of a segment in a bucket: an object is created by one request, which holds it in memory."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The shape of a stream's blocks and segments; all that reading and writing its files needs."""

    name: str
    """The stream's name."""
    fingerprint: bytes
    """Of its recipe, 16 bytes."""
    block_tokens: int
    """Tokens per block."""
    dtype: "np.dtype[np.unsignedinteger]"
    """Little-endian."""
    segment_blocks: int
    """Blocks per segment."""
    values: Mapping[str, Any]
    """All of ``stream.json``: the above, the raw topic, and under ``genesis`` the whole genesis."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's tokens."""
        return self.block_tokens * self.dtype.itemsize

    @property
    def recipe(self) -> Mapping[str, Any]:
        """All that decides the tokens, as the genesis has it; empty in a store of an early version."""
        found: Mapping[str, Any] = self.values.get("genesis", {}).get("recipe", {})
        return found

    @classmethod
    def from_genesis(cls, genesis: Genesis, segment_blocks: int) -> Self:
        """Return a store's description of a stream, with segments of ``segment_blocks`` blocks."""
        return cls.from_values(
            {
                "format": layout.FORMAT,
                "stream": genesis.stream,
                "fingerprint": genesis.recipe.fingerprint.hex(),
                "raw_topic": genesis.recipe.raw_topic,
                "block_tokens": genesis.recipe.block_tokens,
                "dtype": genesis.recipe.dtype,
                "end_of_document": genesis.recipe.end_of_document,
                "segment_blocks": segment_blocks,
                "genesis": genesis.to_dict(),
            }
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the stream that a decoded ``stream.json`` describes.

        Raises StoreError where the format is another; DamagedError where a field is missing or impossible.
        """
        if values.get("format") != layout.FORMAT:
            raise StoreError(
                f"its format is {values.get('format')!r}, this version knows format {layout.FORMAT}: "
                "use the version of tokenmill that wrote it"
            )
        try:
            info = cls(
                name=str(values["stream"]),
                fingerprint=bytes.fromhex(values["fingerprint"]),
                block_tokens=int(values["block_tokens"]),
                dtype=np.dtype(_DTYPES[_DTYPES.index(values["dtype"])]).newbyteorder("<"),
                segment_blocks=int(values["segment_blocks"]),
                values=values,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"it cannot be used ({error!r})") from error
        if info.block_tokens < 1 or info.segment_blocks < 1:
            raise DamagedError("its stream has blocks or segments without content")
        return info

    def differences(self, other: "StreamInfo") -> str:
        """Return what differs between this stream and another of its name, in the words of the settings."""
        found = []
        if self.segment_blocks != other.segment_blocks:
            found.append(f"segment_blocks: the stream has {self.segment_blocks}, here {other.segment_blocks}")
        if self.fingerprint != other.fingerprint:
            genesis = [Genesis.from_dict(one.values["genesis"]) for one in (self, other) if "genesis" in one.values]
            if len(genesis) == 2:  # noqa: PLR2004 - of both
                found += differences(genesis[0].recipe, genesis[1].recipe)
            else:  # a store of an early version
                found.append(f"fingerprint: the stream has {self.fingerprint.hex()}, here {other.fingerprint.hex()}")
        return "; ".join(found)

    def in_bucket(self) -> "StreamInfo":
        """Return the description that stands in a bucket: with segments of `MOST_BUCKET_BYTES` at most."""
        return self._with_segments(min(self.segment_blocks, max(1, MOST_BUCKET_BYTES // self.block_bytes)))

    def in_stores(self) -> "StreamInfo":
        """Return the description that stands in stores, of one that is in a bucket."""
        return self._with_segments(self.values.get("genesis", self.values)["segment_blocks"])

    def _with_segments(self, blocks: int) -> "StreamInfo":
        return self.from_values({**self.values, "segment_blocks": blocks})

    def encode(self) -> bytes:
        """Return the bytes of ``stream.json``: canonical JSON and one newline."""
        return canonical_json(self.values) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the stream whose ``stream.json`` holds ``data``.

        Raises StoreError where it is a description of another format; DamagedError where it is none, or contradicts the
        genesis in it, which hashes to the fingerprint.
        """
        try:
            values = parse_json(data)
        except ValueError as error:
            raise DamagedError(f"it is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise DamagedError("it is not a JSON object")
        info = cls.from_values(values)
        if "genesis" in values:
            try:
                genesis = Genesis.from_dict(values["genesis"])
                told = cls.from_genesis(genesis, genesis.segment_blocks)
            except (TokenMillError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise DamagedError(f"the genesis in it was changed ({error})") from error
            if data not in {told.encode(), told.in_bucket().encode()}:
                raise DamagedError("it is not what the genesis in it says")
        return info


@dataclass(frozen=True, slots=True)
class Start:
    """The first block that a partition of a store holds, or will hold; a multiple of ``segment_blocks``."""

    block: int
    chain: bytes
    """Before that block."""

    def encode(self) -> bytes:
        """Return the bytes of ``start.json``: canonical JSON with a CRC of all but itself, and one newline."""
        values = {"format": layout.FORMAT, "first_block": self.block, "chain_before": self.chain.hex()}
        return canonical_json({**values, "crc32": crc32(canonical_json(values))}) + b"\n"


def read_start(directory: Path, info: StreamInfo, partition: int) -> Start:
    """Return where a partition begins; block 0 where nothing says otherwise, or where there is no directory.

    List the directory before: the start is raised before segments are unlinked. Raises DamagedError for a changed file.
    """
    path = directory / layout.START_FILE
    try:
        data = read_regular(path, most=MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Start(0, genesis_hash(info.fingerprint, partition))
    try:
        values = parse_json(data)
        start = Start(values["first_block"], bytes.fromhex(values["chain_before"]))
    except (ValueError, TypeError, LookupError) as error:
        raise layout.damaged(path, f"it does not say where the partition begins ({error!r})") from error
    if start.encode() != data or len(start.chain) != HASH_BYTES or start.block % info.segment_blocks:
        raise layout.damaged(path, "it is not what was written (its CRC differs)")
    return start


def write_start(directory: Path, start: Start) -> None:
    """Write down durably where a partition begins."""
    layout.put_file(directory / layout.START_FILE, start.encode())


def unlink_below(directory: Path, firsts: Iterable[int], block: int) -> list[int]:
    """Unlink the segments of ``firsts`` that begin below ``block``, which readers ignore already; return these."""
    gone = [first for first in firsts if first < block]
    for first in gone:
        for path in layout.SegmentPaths(directory, first).all:
            path.unlink(missing_ok=True)
    return gone


@dataclass(frozen=True, slots=True)
class Store:
    """A store that may be written to by this host."""

    path: Path
    id: str
    """A random UUID; part of the consumer group's name."""

    @classmethod
    def open(cls, path: StorePath) -> Self:
        """Open a store for writing; raises StoreError where it is none, or another place's, DiskError if unreadable."""
        path = layout.store_directory(path)
        file = path / layout.STORE_FILE
        with layout.blaming(path):
            try:
                identity, here = read_json_file(file), _here(path)
            except FileNotFoundError:
                raise StoreError(
                    f"{path} is no store: it has no {layout.STORE_FILE}; give the directory that has one"
                ) from None
            except (ValueError, DamagedError) as error:
                raise StoreError(
                    f"{file} is not JSON ({error}); {_adopt(path)} gives the store a new identity"
                ) from error
        known = isinstance(identity, dict) and identity.get("format") == layout.FORMAT
        if not known or not isinstance(identity.get("id"), str):
            raise StoreError(
                f"{file} is no identity of format {layout.FORMAT}; use the version of tokenmill that wrote it, or "
                f"{_adopt(path)}, which gives the store a new one"
            )
        owner = identity.get("host"), identity.get("directory")
        if owner != here:
            raise StoreError(
                f"the store {path} says that it is {owner[0]}:{owner[1]}, but this is {here[0]}:{here[1]}. If it was "
                f"moved here, or is a copy, run {_adopt(path)}: it gets an identity (and a consumer group) of its own "
                "and keeps what it holds"
            )
        return cls(path, identity["id"])

    @classmethod
    def open_or_create(cls, path: StorePath, then: str = layout.GOES_ON) -> Self:
        """Open a store for writing; a directory without identity gets a new one, and keeps its streams.

        ``then``: what follows once its disk is there.

        Raises StoreError for another host's or directory's, a bucket, or where a file is in the way; DiskError where it
        cannot be made, read or written to.
        """
        path = layout.store_directory(path)
        layout.require_no_bucket(path)
        with layout.blaming(path, then):
            above = next(each for each in (path, *path.parents) if each.exists())
            if not above.is_dir():
                raise StoreError(f"{path} cannot be a store, for {above} is a file: give a directory")
            path.mkdir(parents=True, exist_ok=True)
            if not (path / layout.STORE_FILE).exists():
                _create_identity(path)
            layout.sync_way_to(path)  # always: its creator may have died before the sync
        return cls.open(path)

    def require(self) -> None:
        """Raise DiskError where this very store is not in its place, as below the mount point of an unmounted disk."""
        try:
            there = self.open(self.path).id
        except DiskError:
            raise
        except StoreError:
            there = None
        if there != self.id:
            raise DiskError(
                f"{self.path} no longer holds the store {self.id}: mount its disk again, or move it back: "
                f"{layout.GOES_ON}. To begin a new store here, stop the service and start it again"
            )

    @classmethod
    def adopt(cls, path: StorePath) -> Self:
        """Give a copied or moved store a new identity, bound to this host and directory; durable when this returns.

        What the store holds stays. Raises StoreError where this is no store; LockedError where a process writes to it.
        """
        path = layout.store_directory(path)
        layout.require_no_bucket(path)
        if not (path / layout.STORE_FILE).exists() and not streams_in(path):
            raise StoreError(
                f"{path} is no store: it has no {layout.STORE_FILE} and no stream; give the directory of one"
            )
        with ExitStack() as locks:
            for stream in streams_in(path):
                locks.enter_context(layout.PartitionLock(layout.stream_directory(path, stream)))
                for partition in partitions_in(path, stream):
                    locks.enter_context(layout.PartitionLock(layout.partition_directory(path, stream, partition)))
            layout.put_file(path / layout.STORE_FILE, _identity(path, uuid.uuid4().hex))
        return cls.open(path)

    def add_stream(self, info: StreamInfo, tokenizer: bytes | None) -> StreamInfo:
        """Put a stream's description and tokenizer file (None for raw bytes) into the store, durably, if it has none.

        Returns the description that the store holds. Raises FingerprintError where its fingerprint or its segments are
        others; DiskError where the store cannot be read or written to.
        """
        directory = layout.stream_directory(self.path, info.name)
        with layout.blaming(self.path):
            if (directory / layout.STREAM_FILE).exists():
                known = read_stream(self.path, info.name)
                if (known.fingerprint, known.segment_blocks) != (info.fingerprint, info.segment_blocks):
                    raise FingerprintError(
                        f"{directory} holds a stream made with other settings ({known.differences(info)}): use another "
                        "store, or a new stream name"
                    )
                layout.sync_directory(directory)  # its writer may have died before the sync
                return known
            directory.mkdir(exist_ok=True)
            layout.sync_directory(self.path)
            if tokenizer is not None:
                _put_shared(directory / layout.TOKENIZER_FILE, tokenizer)
            _put_shared(directory / layout.STREAM_FILE, info.encode())
            return info


def read_stream(store: StorePath, stream: str) -> StreamInfo:
    """Return a stream's description in a store, or in a copy of one.

    Raises StoreError where the directory holds no such stream, or one of another format; DiskError where it may not be
    read, or its disk fails; DamagedError where the stream's description was changed.
    """
    store = layout.store_directory(store)
    directory = layout.stream_directory(store, stream)
    file = directory / layout.STREAM_FILE
    try:
        data = read_regular(file, most=MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if directory.is_dir() and partitions_in(store, stream):
            raise layout.description_damaged(file, "it is missing, and partitions are there") from None
        known = ", ".join(streams_in(store)) or "none"
        raise StoreError(
            f"the store {store} holds no stream {stream!r} (streams there: {known}); check both names, and whether "
            "anything fills this store: a segment worker, a mirror, or `tokenmill pack`"
        ) from None
    except OSError as error:
        raise layout.unreadable(file, error) from error
    try:
        info = StreamInfo.decode(data)
    except DamagedError as error:
        raise layout.description_damaged(file, error.what) from error
    except StoreError as error:
        raise StoreError(f"{file}: {error}") from error
    if info.name != stream:
        raise StoreError(f"{directory} holds the stream {info.name!r}: give the directory that name again")
    return info


def tokenizer_path(store: Path, info: StreamInfo) -> Path:
    """Return where a store keeps the ``tokenizer.json`` of a stream."""
    return layout.stream_directory(store, info.name) / layout.TOKENIZER_FILE


def read_tokenizer(store: Path, info: StreamInfo) -> bytes | None:
    """Return the ``tokenizer.json`` that a store keeps of a stream; None where its tokens are raw bytes.

    Raises DamagedError where it is missing, or another one than the stream's recipe names.
    """
    path = tokenizer_path(store, info)
    digest = info.recipe.get("tokenizer_sha256")
    if digest == RAW_BYTES_SHA256:
        return None
    try:
        content = read_regular(path, most=MAX_TOKENIZER_BYTES)
    except FileNotFoundError:
        if digest:
            raise layout.description_damaged(path, f"the stream's tokenizer is missing (SHA-256 {digest})") from None
        return None  # a store of an early version
    if digest and sha256(content).hexdigest() != digest:
        raise layout.description_damaged(path, f"it is not the stream's tokenizer, whose SHA-256 is {digest}")
    return content


def streams_in(store: StorePath) -> list[str]:
    """Return the names of the streams in a store; none where there is no such directory.

    Raises DiskError where the directory may not be read.
    """
    path = layout.store_directory(store)
    try:
        inside = [*path.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise layout.unreadable(path, error) from error
    # False, unlike Path.exists, also of a folder of somebody else's that is no stream
    return sorted(one.name for one in inside if os.path.exists(one / layout.STREAM_FILE))  # noqa: PTH110


def partitions_in(store: StorePath, stream: str) -> list[int]:
    """Return the partitions of a stream that the store holds something of, in order."""
    directory = layout.stream_directory(layout.store_directory(store), stream)
    return layout.partition_numbers(path.name for path in directory.iterdir())


def _here(path: Path) -> tuple[str, str]:
    return socket.gethostname(), str(path.resolve())


def _adopt(path: Path) -> str:
    return f"`{shlex.join(['tokenmill', 'adopt', '--store', str(path)])}`"


def _identity(path: Path, identity: str) -> bytes:
    host, directory = _here(path)
    return canonical_json({"format": layout.FORMAT, "id": identity, "host": host, "directory": directory}) + b"\n"


def _put_shared(path: Path, data: bytes) -> None:
    """Put a file in its place while other processes may be doing so with the same content."""
    mine = path.with_name(f"{path.name}.{uuid.uuid4().hex}{layout.TEMPORARY}")
    layout.put_file(mine, data)
    mine.rename(path)
    layout.sync_directory(path.parent)


def _create_identity(path: Path) -> None:
    """Write a new identity, unless another process is quicker; the first one counts."""
    identity = uuid.uuid4().hex
    mine = path / f"{layout.STORE_FILE}.{identity}{layout.TEMPORARY}"
    layout.put_file(mine, _identity(path, identity))
    try:
        os.link(mine, path / layout.STORE_FILE)  # unlike a rename, this fails where the name is taken
    except FileExistsError:
        pass
    finally:
        mine.unlink()
