"""From files, archives, pipes and data sets into a raw topic: `find_sources` finds the documents, `produce` sends them.

- What is read: `paths` finds the `sources`, `archives` and `datasets`. They are `compressed` files in some encoding
  (`recoding`), of which `formats` makes entries.
- What is sent: a function of the user's own may change each entry (`mapping`); `shape` makes records of what meets the
  `conditions`.
- In which order: `reading_order`. `producing` is the run, `sender` the way to Kafka, `summary` what came of it.
- Where a run continues: `resuming` decides, by the notes of the run (`run_notes`), the marks in the raw topic
  (`run_position`), and how sources have changed since (`source_changes`).
"""

from .items import DocumentSource, Item, Refused
from .paths import FolderWalk, find_sources, is_piped
from .producing import RunPlan, flush, produce, require_flush_allowed
from .run_notes import RunIdentity
from .shape import Shape, ShapeOptions, shape_for
from .sources import GivenSource, Reading, read_items
from .summary import DryRunResult, PassedOver, Progress, Summary, dry_run

__all__ = [
    "DocumentSource",
    "DryRunResult",
    "FolderWalk",
    "GivenSource",
    "Item",
    "PassedOver",
    "Progress",
    "Reading",
    "Refused",
    "RunIdentity",
    "RunPlan",
    "Shape",
    "ShapeOptions",
    "Summary",
    "dry_run",
    "find_sources",
    "flush",
    "is_piped",
    "produce",
    "read_items",
    "require_flush_allowed",
    "shape_for",
]
