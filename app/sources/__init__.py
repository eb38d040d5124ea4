"""What people have, as documents: `find_sources` finds files, archives, tables and data sets, `read_items` reads them.

- What is read: `paths` finds the `file_sources`, in archives too, `remote` files, `sql` tables and `datasets`. Of files
  in some compression and encoding (`encodings`), `formats` makes entries.
- What comes out: a function of the user's own may change each entry (`mapping`); `shape` makes `items` of what meets
  the `conditions`.
- In which order: `reading_order`. Whether a source is what it was: `source_changes`.

The libraries that only some sources need are imported when such a source is read.
"""

from .file_sources import GivenSource, Reading, read_items
from .items import DocumentSource, Item, Refused
from .paths import FolderWalk, find_sources, is_piped
from .shape import Shape, ShapeOptions, shape_for

__all__ = [
    "DocumentSource",
    "FolderWalk",
    "GivenSource",
    "Item",
    "Reading",
    "Refused",
    "Shape",
    "ShapeOptions",
    "find_sources",
    "is_piped",
    "read_items",
    "shape_for",
]
