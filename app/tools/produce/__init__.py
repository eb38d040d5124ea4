"""From what people have into a raw topic: `find_sources` finds the documents, `produce` sends them."""

from .dry import Dry, dry_run
from .flush import flush, require_flush_allowed
from .folders import Walk
from .identity import Identity
from .items import Item, Refused
from .paths import find_sources, is_piped
from .run import Plan, produce
from .shape import Shape
from .sources import GivenSource, Reading, Source, read_items
from .summary import PassedOver, Progress, Summary
from .wishes import Wishes, shape_for

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
