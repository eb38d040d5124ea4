"""From what people have into a raw topic: `find_sources` finds the documents, `produce` sends them."""

from .flush import flush, require_flush_allowed
from .items import Item, Refused, Source
from .paths import Walk, find_sources, is_piped
from .producing import Plan, produce
from .run_notes import Identity
from .shape import Shape, Wishes, shape_for
from .sources import GivenSource, Reading, read_items
from .summary import Dry, PassedOver, Progress, Summary, dry_run

__all__ = [
    "Dry",
    "GivenSource",
    "Identity",
    "Item",
    "PassedOver",
    "Plan",
    "Progress",
    "Reading",
    "Refused",
    "Shape",
    "Source",
    "Summary",
    "Walk",
    "Wishes",
    "dry_run",
    "find_sources",
    "flush",
    "is_piped",
    "produce",
    "read_items",
    "require_flush_allowed",
    "shape_for",
]
