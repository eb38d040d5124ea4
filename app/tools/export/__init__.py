"""Sealed segments in formats of others: `export` writes what a folder lacks; a format is a class in `formats`."""

from .exporting import Exported, export
from .formats import FORMATS, FormatChoice, What

__all__ = ["FORMATS", "Exported", "FormatChoice", "What", "export"]
