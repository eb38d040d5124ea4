"""A function of a user that takes its time."""

import time

from tokenmill.documents import Document


def slow(document: Document) -> Document:
    """Return the document after 10 ms, so that a backlog can be seen."""
    time.sleep(0.01)
    return document


slow.version = "1"  # type: ignore[attr-defined]
