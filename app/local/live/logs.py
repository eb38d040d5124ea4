"""Our own log lines in a file, where a view owns the terminal."""

import logging
from pathlib import Path

from ...logs import set_up_logging


def log_to_file(path: Path, level: str) -> None:
    """Send all log lines of this process to the end of ``path``, as JSON; its directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    set_up_logging("json", level)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(path.open("a", encoding="utf-8"))
