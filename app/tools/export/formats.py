"""What every format of an export promises, and which formats there are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from .arrow_files import ArrowFiles, HuggingFaceFiles, ParquetFiles
from .flat_files import MegatronFiles, NanoGptFiles
from .folder import ExportContent, ExportedFile
from .lance_files import LanceFiles
from .rows import ExportRows, RowShape
from .shards import LitDataShards, MosaicShards

FormatChoice = Literal["parquet", "arrow", "lance", "hf", "mds", "litdata", "megatron", "nanogpt"]
FORMATS: Final = get_args(FormatChoice)


class ExportFormat(Protocol):
    """A way to write rows; another format is a class with these, and a line in `BY_NAME`."""

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the files of one segment, whose names begin with ``name``; on return their content is durable.

        Names and content are a function of ``name`` and the rows. There is one chunk of rows at least.
        """

    def index(self, content: ExportContent) -> None:
        """Write what names all files of the folder, where the format has such; atomic, and durable on return."""


LATER_FILES: Final[dict[FormatChoice, dict[str, int]]] = {"litdata": {"format": 2}}
"""Formats whose files are other ones than those of `app.tools.export.folder.FORMAT`: to a folder of one kind, none of
the other are added."""
BY_NAME: Final[dict[FormatChoice, Callable[[Path, RowShape], ExportFormat]]] = {
    "parquet": ParquetFiles,
    "arrow": ArrowFiles,
    "lance": LanceFiles,
    "hf": HuggingFaceFiles,
    "mds": MosaicShards,
    "litdata": LitDataShards,
    "megatron": MegatronFiles,
    "nanogpt": NanoGptFiles,
}
