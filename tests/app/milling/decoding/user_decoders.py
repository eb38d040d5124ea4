"""Decoders as a user would write them, good and bad; named by import path in the tests."""

from tokenmill.documents import Document


def latin_1(value: bytes) -> Document | str | None:
    """Return the text in another encoding, with an id and a field; or a reason, declared or not."""
    if value in (b"short", b"undeclared", b"none"):
        return {b"short": "short", b"undeclared": "something"}.get(value)
    return Document(value.decode("latin-1"), len(value), {"label": "l1", "secret": "dropped"})


latin_1.version = "2"  # type: ignore[attr-defined]
latin_1.reasons = ("short",)  # type: ignore[attr-defined]


def failing(value: bytes) -> Document:
    """Fail over every value."""
    raise ValueError(f"cannot read {value!r}")


failing.version = "1"  # type: ignore[attr-defined]


def wrong(value: bytes) -> object:
    """Return what is no document, or one over the limits."""
    return {b"bytes": value, b"surrogate": Document("\ud800"), b"long": Document("a" * 10_000_000)}.get(value, 5)


wrong.version = "1"  # type: ignore[attr-defined]


def unversioned(value: bytes) -> Document:
    """Return the text; its author forgot the version."""
    return Document(value.decode())
