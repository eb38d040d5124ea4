"""A user's function that takes its time, so that a backlog can be seen."""

import time

from tokenmill.documents import Document


def slow(document: Document) -> Document:
    """Return the document after 10 ms."""
    time.sleep(0.01)
    return document


slow.version = "1"  # type: ignore[attr-defined]
