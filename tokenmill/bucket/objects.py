"""Objects in a bucket: created once, read and listed, never replaced.

A put that fails may have created its object all the same, and so may one that is refused because the name is taken: an
answer was lost, and the client asked again. So after any failure the object is read back: what is there decides.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from tokenmill.errors import BucketError, InputError, how_to_install
from tokenmill.recipe import canonical_json
from tokenmill.store.layout import BUCKET_FILE, STORE_FILE, sync_way_to
from tokenmill.untrusted import regular_file

Given = TypeVar("Given")
Made = TypeVar("Made")
Data: TypeAlias = bytes | memoryview
SCHEMES: Final = ("s3", "gs", "az", "file")
FORMAT: Final = 1
_HINTS: Final = {
    "169.254.169.254": "no login is in the environment: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AZURE_…",
    "builder error": "a server without TLS needs AWS_ALLOW_HTTP=true",
}
"""What to do, by what obstore says where it finds no login and asks the cloud's own host, or may not speak plainly."""
_FINAL: Final = (PermissionError, FileNotFoundError)
"""What asking again does not change: the login lacks a right, or there is no such bucket."""


class StoredObjects:
    """Objects behind an address of `obstore`, whose names of variables logins have; every failure is an OSError."""

    _directory: Path | None = None
    """Of a mounted share."""

    def __init__(self, address: str) -> None:
        """Open it; nothing is asked for yet. Raises OSError or ValueError where the address cannot be one."""
        if _used_by - {os.getpid()}:  # obstore would wait for ever for threads that only the parent has
            raise InputError(
                "this process was forked from one that has used a bucket, whose threads are not here: start it in "
                "another way, as with DataLoader(…, multiprocessing_context='forkserver')"
            )
        _used_by.add(os.getpid())
        self._library, stores = _library("obstore"), _library("obstore.store")
        parts = urlsplit(address)
        with self._errors():
            if parts.scheme == "file":  # made by nobody: in place of a share that is not mounted would be another one
                self._directory = Path(unquote(parts.path)).resolve(strict=True)
                self._store = stores.LocalStore(self._directory)
            else:
                self._store = stores.from_url(address)

    def create(self, path: str, data: Data) -> None:
        """Create an object whole, by one request. Raises FileExistsError where the name is taken."""
        with self._errors():
            self._library.put(self._store, path, data, mode="create", use_multipart=False)

    def settle(self, path: str) -> None:
        """Let an object that is there outlive a crash; a server has promised that already."""
        if self._directory is not None:
            with regular_file(self._directory / path) as file:
                os.fsync(file.fileno())
            sync_way_to((self._directory / path).parent)

    def read(self, path: str) -> Data:
        """Return an object. Raises FileNotFoundError where there is none."""
        with self._errors():
            return memoryview(self._library.get(self._store, path).bytes())

    def names(self, folder: str, after: str | None) -> list[str]:
        """Return the paths of all objects below a folder, those up to ``after`` left out, in order."""
        with self._errors():
            pages = list(self._library.list(self._store, folder, offset=after))
        return sorted(str(meta["path"]) for page in pages for meta in page)

    def folders(self) -> list[str]:
        """Return the folders at the top, in order."""
        with self._errors():
            return sorted(map(str, self._library.list_with_delimiter(self._store)["common_prefixes"]))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._library.exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(_first_line(error)) from error
        except errors.AlreadyExistsError as error:
            raise FileExistsError(_first_line(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise PermissionError(_first_line(error)) from error
        except errors.BaseError as error:
            raise OSError(_first_line(error)) from error


_used_by: set[int] = set()
"""The process that has used obstore, and those that it was forked from which have."""


def address_of(store: object) -> str | None:
    """Return the address of the bucket that is given as a store, also as a path, which has fewer slashes; else None."""
    if isinstance(store, Path):
        scheme, colon, rest = str(store).partition(":/")
        return f"{scheme}://{'/' * (scheme == 'file')}{rest}" if colon and scheme in SCHEMES else None
    return store if isinstance(store, str) and "://" in store else None


def _library(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(f"a bucket needs obstore, of the extra 'remote': {how_to_install('remote')}") from error


def in_lanes(work: Callable[[Given], Made], items: Iterable[Given], lanes: int) -> Iterator[Made]:
    """Yield what ``work`` makes of the items, in their order; so many at once, and no more than these are held."""
    with ThreadPoolExecutor(lanes, "lanes") as pool:
        flying: deque[Future[Made]] = deque()
        for item in items:
            flying.append(pool.submit(work, item))
            if len(flying) == lanes:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class Bucket:
    """The objects below an address; for any number of threads."""

    def __init__(self, address: str, objects: StoredObjects, pause: Callable[[float], object] = time.sleep) -> None:
        self.address = address
        self._objects = objects
        self._pause = pause

    @classmethod
    def open(cls, address: str) -> "Bucket":
        """Open the bucket at an address; asks for nothing yet. Raises BucketError where it is none, or no directory."""
        address = (address_of(address) or str(address)).rstrip("/")
        try:
            parts = urlsplit(address)
            is_whole = not (parts.query or parts.fragment)  # obstore would leave them out in silence
            if parts.scheme in SCHEMES and is_whole and (parts.path if parts.scheme == "file" else parts.hostname):
                return cls(address, StoredObjects(address))
        except (OSError, ValueError) as error:
            raise BucketError(f"{address} cannot be opened ({_first_line(error)}): check the address") from error
        raise BucketError(
            f"{address} is no bucket: write it as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or "
            "file:///directory of a mounted share, with %3F for a question mark and %23 for a number sign"
        )

    def create(self, path: str, data: Data) -> bool:
        """Create an object durably, unless it is there; return whether it has these bytes now. Raises BucketError."""
        for tries in range(6):
            found: Data | None = data
            try:
                self._objects.create(path, data)
            except OSError as error:
                failure, found = error, self.read(path)
            if found is not None:
                self._settle(path)
                return found is data or np.array_equal(np.frombuffer(found, np.uint8), np.frombuffer(data, np.uint8))
            if isinstance(failure, _FINAL):
                break
            self._pause(min(0.2 * 2**tries, 5.0))
        raise self._failed(f"does not take {path}", failure) from failure

    def _settle(self, path: str) -> None:
        try:
            self._objects.settle(path)
        except OSError as error:
            raise self._failed(f"does not keep {path}", error) from error

    def require(self, path: str, data: Data) -> None:
        """Let an object be there with these bytes. Raises BucketError where it has others, or as `create`."""
        if not self.create(path, data):
            raise BucketError(
                f"{self.address}/{path} is another object than the one of this store. Nothing was replaced. If the "
                "bucket is of another service, or was changed by hand, upload to another prefix"
            )

    def read(self, path: str) -> Data | None:
        """Return the bytes of an object, in a buffer; None where there is none. Raises BucketError where it fails."""
        try:
            return self._objects.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(f"does not give {path}", error) from error

    def names(self, folder: str, after: str | None) -> list[str]:
        """Return the paths of all objects below a folder that are behind ``after``, in order; raises as `read`."""
        try:
            return self._objects.names(folder, after)
        except OSError as error:
            raise self._failed(f"does not list {folder}", error) from error

    def folders(self) -> list[str]:
        """Return the folders at the top of the bucket, in order; raises as `read`."""
        try:
            return self._objects.folders()
        except OSError as error:
            raise self._failed("does not list its folders", error) from error

    def _failed(self, what: str, error: OSError) -> BucketError:
        check = "check the address, and that this login may list, read and create objects there"
        todo = next((hint for said, hint in _HINTS.items() if said in str(error)), check)
        return BucketError(f"{self.address} {what} ({error}): {todo}", passing=not isinstance(error, _FINAL))

    def prepare(self) -> None:
        """Let the bucket be one, and see once that it creates a name only once.

        Several servers answer "created" to both of two creations of one name; uploaders could replace each other's
        objects. Raises BucketError where it is such a server, a store, or a bucket of another format, or as `create`.
        """
        if self.read(STORE_FILE) is not None:
            raise BucketError(f"{self.address} is a store, and no bucket: name a directory, or a prefix, of its own")
        mine = canonical_json({"format": FORMAT}) + b"\n"
        self.require(BUCKET_FILE, mine)
        try:
            self._objects.create(BUCKET_FILE, mine)
        except FileExistsError:
            return
        except OSError as error:
            raise self._failed("cannot be probed", error) from error
        raise BucketError(
            f"{self.address} creates one name twice: it ignores If-None-Match, so two uploaders could overwrite each "
            "other. Nothing was uploaded: use a server that knows conditional writes"
        )
