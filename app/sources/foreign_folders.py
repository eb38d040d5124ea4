"""What other programs leave in folders: files that are about the data, and tables of which the files are not the rows.

The files of a table format also hold rows that it has deleted or changed; which ones count, only its own library knows.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final

_ABOUT: Final = re.compile(
    r"(?:^|[/\\])(?:"
    r"\.(?!\.?(?:[/\\]|$))[^/\\]*"
    r"|_(SUCCESS|FAILURE|metadata|common_metadata|spark_metadata|symlink_format_manifest|temporary|logs)"
    r"|_(started|committed)_(vacuum)?\d+|_(delta_log|delta_index|change_data)"
    r"|[^/\\]*(_\$folder\$|\.(crc|md5|sha\d+))|(MD5|SHA\d+)SUMS|dvc\.(yaml|lock)"
    r"|cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow|dataset_infos?\.json"
    r"|__MACOSX|Thumbs\.db|desktop\.ini"
    r")(?:[/\\]|$)"
)
"""Names that begin with a dot, and what Hadoop, Hive, Spark, Databricks, Hugging Face, DVC, macOS and Windows write
beside data, and people who publish it: checksums. In zip archives of Windows, folders may end with a backslash."""
_CACHE: Final = re.compile(r"(?:^|/)(?:datasets|models|spaces)--[^/]+/(?:blobs|refs)(?:/|$)")
"""What is in a cache of Hugging Face beside the files by their names, which are links to these."""
_POINTER: Final = ".dvc"
"""Suffix of a file that DVC leaves beside the data, or in place of it."""
_TABLES: Final = {
    "Delta Lake": ("_delta_log", r"\d{20}\.(json|checkpoint\..*)|_last_checkpoint", "deltalake"),
    "Iceberg": ("metadata", r"(v\d+|\d{5}-[0-9a-f-]{36})(\.gz)?\.metadata\.json(\.gz)?", "pyiceberg"),
    "Hudi": (".hoodie", r"hoodie\.properties", "hudi"),
    "Paimon": ("snapshot", r"snapshot-\d+|LATEST|EARLIEST", "pypaimon"),
    "Lance": ("_versions", r"\d+\.manifest", "lance"),
}
"""Formats of tables: the folder in each that says which files count, the names of its files, and who reads it."""


def is_about_data(path: str, folder: str = "") -> bool:
    """Return whether a file or folder, found beside data in a ``folder``, is none itself, or is in one that is none."""
    return _ABOUT.search(path) is not None or _CACHE.search(f"{folder}/{path}") is not None


def without_pointers(names: Collection[str]) -> set[str]:
    """Return the names but those of pointers to data that is there as well."""
    there = {*names}
    return {name for name in there if not (name.endswith(_POINTER) and name.removesuffix(_POINTER) in there)}


def why_no_rows(table: str) -> str:
    """Return why the files of a table are not read, and what to do."""
    return (
        f"a table of {table}, whose files also hold deleted rows: write its rows as parquet, with {_TABLES[table][2]}"
    )


def table_above(folder: Path) -> tuple[Path, str] | None:
    """Return the table that a folder is in, or is, and its format; None where it is in none."""
    return next(((above, table) for above in (folder, *folder.parents) if (table := _table_at(above))), None)


@lru_cache(4096)
def _table_at(folder: Path) -> str:
    for table, (inner, names, _) in _TABLES.items():
        with suppress(OSError):
            if any(re.fullmatch(names, name) for name in os.listdir(folder / inner)):  # noqa: PTH208 - names alone
                return table
    return ""


def data_among(names: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Return which files of an archive or a store hold data, and which tables are among them, with their formats.

    A table's name ends with a slash; that of the whole is empty.
    """
    tables: dict[str, str] = {}
    for path in map(PurePosixPath, names):
        for table, (inner, file_names, _) in _TABLES.items():
            if path.parent.name == inner and re.fullmatch(file_names, path.name):
                tables[f"{path.parent.parent}/".removeprefix("./")] = table
    roots = tuple(tables)
    data = {name for name in without_pointers(names) if not name.startswith(roots) and not is_about_data(name)}
    return data, tables
