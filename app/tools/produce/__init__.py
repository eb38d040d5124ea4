"""From what people have into a raw topic: `find_sources` finds the documents, `produce` sends them."""

from .flush import flush, require_flush_allowed
from .items import DocumentSource, Item, Refused
from .paths import FolderWalk, find_sources, is_piped
from .producing import RunPlan, produce
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
