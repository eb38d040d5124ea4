"""A bucket as a folder that is a store, for whoever reads it in any order: files come when they are first opened.

The folder has all that the heads named when it was opened: descriptions, eras, and of each segment the name of its
seal, a link to nothing, so that it is seen in listings. `open_regular` asks here for what is not there, so any process
that has this module fetches, each file once. The oldest segments are removed to keep within the bytes; who has mapped
one keeps it.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tokenmill.bucket.cache import bring_eras, cache_folder
from tokenmill.bucket.fetching import RemoteSegment, stream_of, streams_of, tokenizer_of
from tokenmill.bucket.fetching import HeadLog
from tokenmill.bucket.objects import Bucket, address_of
from tokenmill.canonical import canonical_json
from tokenmill.errors import BucketError
from tokenmill.store import EraWriter, Start, Store, StreamInfo, layout, read_stream
from tokenmill.store.store import write_start
from tokenmill.untrusted import FETCHERS, read_json_file

_temporary: list[TemporaryDirectory[str]] = []


class SegmentFolder:
    """The segments of a stream in a folder, which come out of a bucket."""

    def __init__(self, directory: Path, info: StreamInfo, bucket: Bucket, most_bytes: int | None) -> None:
        """Read the bucket's heads; raises BucketError where it does not answer, or they are none."""
        self.heads = HeadLog(info)
        self.heads.look(bucket)
        self._directory, self._bucket = directory, bucket
        self._most_bytes = None if most_bytes is None else most_bytes // max(1, len(self.heads.begins))
        self._last: dict[int, RemoteSegment] = {}

    def segment(self, partition: int, first: int) -> RemoteSegment | None:
        """Return a segment; None where no head names it."""
        last = self._last.get(partition)
        if last is None or last.segment.first != first:
            if (named := self.heads.segments.get((partition, first))) is None:
                return None
            last = self._last[partition] = RemoteSegment(self._bucket, self.heads.info, named)
        return last

    def fetch(self, path: Path) -> int | None:
        """Let a file of a segment be there, and return its descriptor; None where there is none of that name."""
        partition, first, end = int(path.parent.name), layout.segment_firsts([path.name])[0], path.suffix[1:]
        with layout.locked(path.parent):
            if (remote := self.segment(partition, first)) is None or end not in {*remote.ends, remote.seal_end}:
                return None
            if not path.exists():  # another process may have been quicker
                with layout.blaming(path.parent):
                    layout.put_file(path, remote.read(end))
                    self._make_room(path)
            return os.open(path, os.O_RDONLY)

    def _make_room(self, new: Path) -> None:
        if self._most_bytes is None:
            return
        large = {".bin", ".docs", ".index"}
        files = [(path.stat(), path) for path in new.parent.iterdir() if path.suffix in large]
        over = sum(status.st_size for status, _ in files) - self._most_bytes
        for status, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if over > 0 and path.stem != new.stem:
                path.unlink()
                over -= status.st_size

    def begin(self, store: Store) -> None:
        """Let the folder have the eras, and say in which segments the blocks are."""
        with EraWriter.open(store, self.heads.info.name) as eras:
            bring_eras(self.heads, eras, store.path, self._bucket)
        for partition, first in self.heads.begins.items():
            (directory := self._directory / str(partition)).mkdir(exist_ok=True)
            if first and (remote := self.segment(partition, first)) is not None:
                if remote.manifest is None:
                    raise BucketError(f"{self._bucket.address} does not say what is before block {first}: mirror it")
                write_start(directory, Start(first, bytes.fromhex(remote.manifest.chain_before)))
        for (partition, first), named in self.heads.segments.items():
            remote = RemoteSegment(self._bucket, self.heads.info, named)
            seal = self._directory / str(partition) / f"{first:012d}.{remote.seal_end}"
            with suppress(FileExistsError):
                seal.symlink_to("in-the-bucket")


_folders: Final[dict[Path, SegmentFolder]] = {}


def _fetch(path: Path) -> int | None:
    if not layout.segment_firsts([path.name]) or not (source := path.parents[1] / layout.SOURCE_FILE).exists():
        return None
    directory = path.parents[1]
    if directory not in _folders:  # another process has opened it
        known, info = read_json_file(source), read_stream(directory.parent, directory.name)
        _folders[directory] = SegmentFolder(directory, info, Bucket.open(known["address"]), known["most_bytes"])
    return _folders[directory].fetch(path)


FETCHERS.append(_fetch)


def open_folder(address: str, path: Path, most_bytes: int | None, streams: Sequence[str] = ()) -> Path:
    """Let a folder be a store that has the ``streams`` of a bucket, or all, as of its newest heads.

    Args:
        address: of the bucket.
        path: the folder; the same one is used again, also by several processes.
        most_bytes: of segments that it keeps; None: all that are read.
        streams: which.

    Raises:
        BucketError: the bucket holds no such stream, does not answer, or does not hold what was uploaded.
        DifferenceError, FingerprintError, StoreError, DiskError: the folder is of another bucket, or cannot be used.
    """
    bucket, store = Bucket.open(address), Store.open_or_create(path)
    names = streams or streams_of(bucket)
    with layout.locked(store.path):
        for name in names:
            info, directory = stream_of(bucket, name), store.path / name
            store.add_stream(info, tokenizer_of(bucket, info))
            _folders[directory] = SegmentFolder(directory, info, bucket, most_bytes)
            _folders[directory].begin(store)
            known = {"address": bucket.address, "most_bytes": most_bytes}
            layout.put_file(directory / layout.SOURCE_FILE, canonical_json(known))
    return store.path


def open_temporarily(store: Path) -> Path:
    """Return a store that is given by its path or as a bucket; a folder for that is removed when the process ends."""
    if (address := address_of(store)) is None:
        return store
    _temporary.append(folder := TemporaryDirectory(prefix="tokenmill-"))
    return open_folder(address, Path(folder.name), 2 << 30)


def store_folder(store: Any, stream: str, cached: Any, most_bytes: int | None) -> Path:
    """Return the directory of a store given by its path, or as a bucket with a folder for what is read.

    Raises InputError where it is neither, or only one of bucket and folder is given; else as `open_folder`.
    """
    if (folder := cache_folder(store, cached, most_bytes)) is None:
        return layout.store_directory(store)
    return open_folder(store, folder / "any-order", most_bytes, [stream])
