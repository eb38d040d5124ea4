"""Functions as a user would write them, good and bad; named by import path in the tests."""

from tokenizers import Tokenizer

from tests.app.milling.tokenizers.panicking import panicking
from tokenmill.documents import Document


def shouted(document: Document) -> Document:
    return Document(document.text.upper(), document.id, {**document.fields, "label": "loud", "secret": "dropped"})


shouted.version = "3"  # type: ignore[attr-defined]


def picky(document: Document) -> Document | str | None:
    return {"spam": "spam", "undeclared": "some_reason", "odd": "Not A Reason!", "none": None}.get(
        document.text, document
    )


picky.reasons = ("spam",)  # type: ignore[attr-defined]


class UnspeakableError(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError


def failing(document: Document) -> Document:
    if document.text == "unspeakable":
        raise UnspeakableError
    raise ValueError(f"cannot do {document.text}")


def careful(document: Document) -> Document:
    return failing(document) if document.text == "spam" else document


ANSWERS = {
    "number": 5,
    "surrogate": Document("\ud800"),
    "bytes": Document(b"a"),  # type: ignore[arg-type]
    "empty id": Document("a", ""),
    "bool id": Document("a", True),
    "huge id": Document("a", 2**64),
    "float id": Document("a", 1.5),  # type: ignore[arg-type]
    "list field": Document("a", None, {"label": []}),  # type: ignore[dict-item]
    "nan field": Document("a", None, {"label": float("nan")}),
    "fields": Document("a", None, 5),  # type: ignore[arg-type]
    "long text": Document("a" * 101),
    "long id": Document("a", "b" * 11),
    "long field": Document("a", None, {"label": "b" * 30}),
}


def wrong(document: Document) -> object:
    return ANSWERS[document.text]


def unversioned(document: Document) -> Document:
    """Return the document; its author forgot the version."""
    return document


async def asynchronous(document: Document) -> Document:
    """Return the document, later."""
    return document


def bad_reasons(document: Document) -> Document:
    """Return the document; its reasons are no identifiers."""
    return document


bad_reasons.reasons = ("Too Long; Didn't Read",)  # type: ignore[attr-defined]

A_CONSTANT = 5


def tokenizing(document: Document) -> Document:
    return Document(str(len(Tokenizer.from_str(panicking().decode()).encode(document.text).ids)))


for function in (picky, failing, careful, wrong, bad_reasons, tokenizing):
    function.version = "1"  # type: ignore[attr-defined]
