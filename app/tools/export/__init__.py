"""Sealed segments in formats of others: `export` writes what a folder lacks; a format is a class in `formats`.

`rows` are the blocks or documents of a segment. The `folder` knows which segments are there.
"""

from .exporting import Exported, export
from .formats import FORMATS, FormatChoice
from .rows import What

__all__ = ["FORMATS", "Exported", "FormatChoice", "What", "export"]
