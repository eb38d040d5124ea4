"""From files, folders and standard input into a raw topic: `read_sources` yields documents, `produce` sends them."""

from .flush import flush
from .items import Item, Options, Refused, options_for
from .run import Plan, Summary, produce
from .sources import read_sources

__all__ = ["Item", "Options", "Plan", "Refused", "Summary", "flush", "options_for", "produce", "read_sources"]
