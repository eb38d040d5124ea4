"""Data sets of Hugging Face: streamed from the hub or by a builder, or in a folder that ``save_to_disk`` wrote."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import xxhash

from tokenmill.errors import InputError
from tokenmill.redaction import redacted

from ..milling.tokenizers.vocabulary import listening, reason
from .conditions import number_in
from .file_sources import Chunker, Reading
from .formats.columnar import sound
from .items import Bad, Entry, ItemChunk, Place, library, readable

HUB: Final = "hf://"
_WORDS: Final = frozenset({"name", "split", "revision", "data_dir"})
"""Arguments that are text, whatever they look like: a commit may be all digits."""
_OURS: Final = {
    "path": "it is the part before the ?",
    "streaming": "data sets are always streamed",
    "num_proc": "data sets are streamed; --map-processes is for a function of yours",
    **dict.fromkeys(("keep_in_memory", "save_infos", "verification_mode"), "data sets are streamed"),
    "token": "it would be in ids and logs; set HF_TOKEN, or log in with `hf auth login`",
    "storage_options": "they hold keys, which would be in ids and logs; set them where the store's own tools look",
    "download_config": "it may hold a token, which would be in ids and logs; set HF_TOKEN",
    "trust_remote_code": "no code of a data set is run",
}
"""Arguments of `load_dataset` that an address cannot have, and why."""
_ARGUMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
HOW: Final = (
    "write it as hf://name, hf://owner/name or hf://name/configuration, and behind a ? what load_dataset is told: "
    "hf://owner/name?split=train&revision=main&languages=en,de"
)


@dataclass(frozen=True, slots=True)
class HubAddress:
    """The address of a data set."""

    parts: tuple[str, ...]
    name: str | None = None
    split: str | None = None
    revision: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    """All others, for `load_dataset`: ``data_files``, ``data_dir``, and those of the data set's own loader."""

    @property
    def path(self) -> str:
        """The whole name."""
        return "/".join(self.parts)

    @classmethod
    def parse(cls, text: str) -> "HubAddress":
        """Return the parsed address, with or without ``hf://`` or ``hf://datasets/`` before it.

        Behind the ``?`` are ``key=value`` with ``&`` between them and percent escapes. A value is true, false, null, a
        number, or a text; JSON where it begins with a quote, a bracket or a brace. A list has commas in it, or is a key
        that is given again. Raises InputError where it is invalid; says how to write one.
        """
        path, _, query = text.removeprefix(HUB).partition("?")
        parts = tuple(unquote(path).rstrip("/").split("/"))
        parts = parts[len(parts) > 2 and parts[0] == "datasets" :]  # noqa: PLR2004 - as fsspec writes OWNER/NAME
        found: dict[str, list[Any]] = {}
        for pair in query.split("&") if query else ():
            key, equals, value = pair.partition("=")
            key = unquote(key)
            if not equals or not _ARGUMENT.fullmatch(key):
                raise InputError(f"{text}: {pair!r} is no argument; {HOW}")
            if key in _OURS:
                raise InputError(f"{text}: {key}= cannot be given: {_OURS[key]}")
            found.setdefault(key, []).append(_read(text, key, value))
        twice = next((key for key in sorted(_WORDS & set(found)) if len(found[key]) > 1), "")
        if twice or not parts[-1]:
            raise InputError(f"{text}: {f'{twice}= is given twice' if parts[-1] else 'there is no name'}; {HOW}")
        values = {key: _one_or_all(each) for key, each in found.items()}
        own = {key: values.pop(key, None) for key in ("name", "split", "revision")}
        return cls(parts, **own, arguments=values)


def _read(address: str, key: str, raw: str) -> Any:
    value = unquote(raw)
    if key in _WORDS:
        return value
    if value[:1] in ('"', "[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError as error:
            raise InputError(f"{address}: {key}= is no JSON ({error}), as which it begins") from error
    items = [unquote(item) for item in raw.split(",")]
    if len(items) > 1 and all(items):
        return [_typed(key, item) for item in items]
    return _typed(key, value)


def _typed(key: str, value: str) -> Any:
    if key == "data_files":  # names of files: also those that look like something else
        return value
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    number = number_in(value)
    return value if number is None else number


def _one_or_all(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


MARKS: Final = ("dataset_dict.json", "state.json")
"""A folder that ``save_to_disk`` wrote has one of them: the first for several splits, the second for one."""
_BUILDERS: Final = "datasets.packaged_modules"
"""Where the library has its builders with names of their own: json, csv, parquet, text, …"""
SAFE_BUILDERS: Final = ("arrow", "conll", "csv", "json", "parquet", "text", "xml")
"""Those that only read text and tables. Of the others, some run code of a file (pandas: pickles), log in somewhere
(sql), or decode by a member's name whatever Python can (webdataset)."""


class SplitInfo(NamedTuple):
    """What is known of a split before it is read."""

    rows: int | None = None
    bytes: int | None = None
    """Bytes of its rows in memory, as Arrow holds them."""


@dataclass(slots=True)
class DatasetInfo:
    """What is known of a data set before it is read: for `--dry-run`."""

    name: str
    features: dict[str, str] | None = None
    """Columns and their types; None: unknown until a row is read."""
    splits: dict[str, SplitInfo] = field(default_factory=dict)
    download: int | None = None
    why_not: str = ""


def _known_of_builder(name: str, builder: Any) -> DatasetInfo:
    info = builder.info
    splits = {
        str(split): SplitInfo(found.num_examples or None, found.num_bytes or None)
        for split, found in (info.splits or {}).items()
    }
    for split in getattr(builder.config, "data_files", None) or {}:
        splits.setdefault(str(split), SplitInfo())
    download = info.download_size or sum(size for _, size in _files_of(builder) if size) or None
    return DatasetInfo(name, _features(info.features), splits, download)


def _known_of_saved(name: str, opened: Any) -> DatasetInfo:
    splits = opened if isinstance(opened, dict) else {str(opened.split or "all"): opened}
    first = next(iter(splits.values()), None)
    parts = {str(split): SplitInfo(data.num_rows, data.data.nbytes) for split, data in splits.items()}
    return DatasetInfo(name, None if first is None else _features(first.features), parts)


def _files_of(builder: Any) -> Iterator[tuple[str, int | None]]:
    """Yield what changes when a file of a builder does (name, time, tag, commit), and its size on disk."""
    for split, files in (getattr(builder.config, "data_files", None) or {}).items():
        yield f"{split} {getattr(files, 'origin_metadata', ())}", None
        for file in files:
            path = Path(file)
            size = path.stat().st_size if path.is_file() else None
            yield f"{file} {size}", size


def _features(features: Any) -> dict[str, str] | None:
    if not features:
        return None
    return {str(name): str(getattr(feature, "dtype", None) or feature) for name, feature in features.items()}


def is_dataset(path: str) -> bool:
    """Return whether a folder is a saved data set."""
    return any(Path(path, mark).is_file() for mark in MARKS)


class DatasetSource:
    """One split of a data set; entries are rows, numbered from 1."""

    size = 0

    def __init__(self, path: str, split: str | None, reading: Reading, *, follow_links: bool = False) -> None:
        """Take the split of an address (`HubAddress`), or of a folder that ``save_to_disk`` wrote.

        ``follow_links``: links and cards in a folder may lead out of it. Raises InputError where the library is
        missing; or the address is invalid, or names another split.
        """
        self._path = path
        self._saved = not path.startswith(HUB)
        folder = path.removeprefix(HUB)
        self._address = (
            HubAddress((folder,)) if self._saved or (folder and Path(folder).is_dir()) else HubAddress.parse(path)
        )
        if split and self._address.split not in (None, split):
            raise InputError(f"{path}: it says split={self._address.split}, and --split says {split}: give one of them")
        self._split = split or self._address.split
        self._reading = reading
        self._follow_links = follow_links
        self._library = library("datasets", "hf", "reading data sets")
        self._found: tuple[str, str | None, str] | None = None  # name, configuration and commit, as the hub says
        name = redacted(readable(path))
        self.name = f"{name}[{split}]" if split else name

    def signature(self) -> bytes:
        """Return what changes when the data set does: its commit on the hub, or its files' names, sizes and times.

        From then on `chunks` reads exactly that commit. Raises InputError where the hub does not tell it.
        """
        if self._on_hub:
            self._found = self._found or self._on_the_hub()
            return self._found[-1].encode()
        folder = self._address.path
        files = sorted(Path(folder).rglob("*") if Path(folder).is_dir() else ())
        found = [(file, file.stat()) for file in files if file.is_file() and not file.name.startswith("cache-")]
        lines = [f"{file} {status.st_size} {status.st_mtime_ns}" for file, status in found]
        if self._address.arguments:
            lines += [line for line, _ in _files_of(self._builder())]
        return xxhash.xxh3_128_digest("\n".join(lines).encode("utf-8", "surrogateescape"))

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the rows' items."""
        chunker = Chunker(self._reading.shape, self.name, start)
        yield from chunker.all(self._reading.mapped(self._entries(start), self.name))

    def known(self) -> DatasetInfo:
        """Return what is known of the data set before it is read."""
        try:
            if self._saved:
                return _known_of_saved(self.name, self._library.load_from_disk(self._path))
            return _known_of_builder(self.name, self._builder())
        except Exception as error:  # noqa: BLE001 - any library may be behind a data set, with errors of its own
            return DatasetInfo(self.name, why_not=_one_line(error))

    @property
    def _on_hub(self) -> bool:
        path = self._address.path
        packaged = path.isidentifier() and find_spec(f"{_BUILDERS}.{path}") is not None
        return not (self._saved or packaged or Path(path).is_dir())

    def _entries(self, start: Place) -> Iterator[Entry]:
        number = start.entry
        try:
            rows = self._rows()
            if (names := rows.column_names) and (bad := self._reading.needs.missing(list(names))):
                yield 0, 0, bad
                return
            for row in rows.skip(start.entry):
                number += 1
                yield number, 0, dict(row) if isinstance(row, dict) else Bad("no row")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - any library may be behind a data set, with errors of its own
            place = f" to its end (behind row {number:,})" if number else ""
            yield number + 1 if number else 0, 0, Bad(f"cannot be read{place}: {_one_line(error)}", broken=True)

    def _on_the_hub(self) -> tuple[str, str | None, str]:
        """Return the name and the configuration that the hub has under the address, and the newest commit."""
        address = self._address
        hub = library("huggingface_hub", "hf", "reading data sets")
        missing = library("huggingface_hub.errors", "hf", "reading data sets").RepositoryNotFoundError
        api = hub.HfApi(endpoint=self._library.config.HF_ENDPOINT)
        errors: list[Exception] = []
        with listening() as heard:
            for path, name in _meanings(address):
                try:
                    info = api.dataset_info(path, revision=address.revision)
                    return str(info.id), name, str(info.sha)
                except Exception as error:  # noqa: BLE001 - any library may be between here and the hub
                    errors.append(error)
                    if not isinstance(error, missing):
                        break
        why = _one_line(errors[0]) if isinstance(errors[0], missing) else reason(errors[0], heard)
        raise InputError(
            f"{self.name}: the hub does not tell its commit, without which nobody can go on in it: {why}; check the "
            "name and the connection"
        ) from errors[0]

    def _builder(self) -> Any:
        """Return what reads the files, one of `SAFE_BUILDERS`, whether an address chose it or what is in a folder."""
        address = self._address
        path, name, revision = address.path, address.name, address.revision
        if self._on_hub:
            with suppress(InputError):  # the library may have it in its cache
                self._found = self._found or self._on_the_hub()
            path, name, revision = self._found or (*_meanings(address)[0], revision)
        arguments = {"name": name, "revision": revision, **address.arguments}
        if path not in SAFE_BUILDERS and not self._on_hub and not Path(path).is_dir():
            raise InputError(self._unsafe(path))  # before the library has looked at a file
        builder = self._heard(lambda: self._library.load_dataset_builder(path, **arguments))
        module = type(builder).__module__
        if module not in {f"{_BUILDERS}.{name}.{name}" for name in SAFE_BUILDERS}:
            raise InputError(self._unsafe(module.removeprefix(f"{_BUILDERS}.").partition(".")[0]))
        self._require_own_files(builder)
        return builder

    def _unsafe(self, builder: str) -> str:
        return (
            f"{self.name}: files of the builder {builder!r} are not read, for some run code, or are no text; these "
            f"are: {', '.join(SAFE_BUILDERS)}. Convert the files with a program that you trust"
        )

    def _require_own_files(self, builder: Any) -> None:
        """Check that a data set has no file outside of itself: anybody's card may say what its files are."""
        if "data_files" in self._address.arguments or self._follow_links:
            return
        home = HUB if self._on_hub else os.path.realpath(self._address.path) + os.sep
        for files in (getattr(builder.config, "data_files", None) or {}).values():
            for file in files:
                if not (file if self._on_hub else os.path.realpath(file)).startswith(home):
                    raise InputError(f"{self.name}: {file} is outside of it: name that file, or give --follow-links")

    def _heard(self, load: Callable[[], Any]) -> Any:
        """Return what ``load`` does; what the hub's library logs of its attempts becomes part of one error."""
        with listening() as heard:
            try:
                return load()
            except Exception as error:
                advice = "check the name, the network and HF_ENDPOINT"
                why = f"{reason(error, heard)}; {advice}" if heard else _one_line(error)
                raise InputError(f"{self.name}: {why}") from error

    def _rows(self) -> Any:
        if self._saved:
            opened = self._library.load_from_disk(self._path)
        else:
            builder = self._builder()
            opened = self._heard(lambda: builder.as_streaming_dataset(split=self._split))
        if isinstance(opened, dict):
            wanted = self._split or (next(iter(opened)) if len(opened) == 1 else None)
            if wanted not in opened:
                raise InputError(f"the data set has the splits {', '.join(map(str, opened))}: choose one with --split")
            opened = opened[wanted]
        if hasattr(opened, "_ex_iterable"):
            return opened
        for batch in opened.data.to_batches():  # of files that are mapped, and looked at as they are
            sound(batch)
        return opened.to_iterable_dataset()


def _meanings(address: HubAddress) -> list[tuple[str, str | None]]:
    """Return the names and configurations on the hub that an address may mean, the likeliest first."""
    if address.name is not None or len(address.parts) == 1:
        return [(address.path, address.name)]
    owner, name, *configuration = address.parts
    if configuration:
        return [(f"{owner}/{name}", "/".join(configuration))]
    return [(address.path, None), (owner, name)]  # the hub knows today's owner of a name that was given without one


def _one_line(error: BaseException | None) -> str:
    return redacted(" ".join(str(error).split()))
