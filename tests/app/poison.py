"""A user's function that a record kills the whole process with, as a fault in a native library would."""

import os

from tokenmill.documents import Document


def fragile(document: Document) -> Document:
    """Return the document; end the process on one that says so."""
    if document.text == "poison":
        os._exit(13)
    return document


fragile.version = "1"  # type: ignore[attr-defined]
