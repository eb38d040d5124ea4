"""Files for their owner's eyes alone."""

import os
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody but its owner can read, not even for the moment while it is written."""
    path.unlink(missing_ok=True)  # an older file would keep its rights
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w", encoding="utf-8") as file:
        file.write(text)
