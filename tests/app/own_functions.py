"""Functions of a user: one that takes its time, one that a record kills the whole process with."""

import os
import time

from tokenmill.documents import Document


def slow(document: Document) -> Document:
    """Return the document after 10 ms, so that a backlog can be seen."""
    time.sleep(0.01)
    return document


def fragile(document: Document) -> Document:
    """Return the document; end the process on one that says so, as a fault in a native library would."""
    if document.text == "poison":
        os._exit(13)
    return document


slow.version = fragile.version = "1"  # type: ignore[attr-defined]
