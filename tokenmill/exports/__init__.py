"""Sealed segments in formats of others: `export` writes what a folder lacks; a format is a class in `formats`.

`rows` are the blocks or documents of a segment. `arrow_files`, `lance_files`, `shards` and `flat_files` write them. The
`folder` knows which segments are there.
"""

from tokenmill.exports.exporting import Exported, export
from tokenmill.exports.formats import FORMATS, FormatChoice
from tokenmill.exports.rows import What

__all__ = ["FORMATS", "Exported", "FormatChoice", "What", "export"]
