"""A text that normalizing makes very long is a dead letter; every other one passes as it is."""

import tracemalloc

import pytest

from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.normalized_length import (
    NORMALIZED_TOO_LARGE,
    SLICE_CHARACTERS,
    NormalizedLength,
    normalized_limit,
)
from tokenmill.app.milling.tokenizers import TOKENIZER_FAILED
from tokenmill.documents import Document
from tokenmill.errors import PanicError, RecordError

LONG = "a" * (SLICE_CHARACTERS + 1)


def test_the_limit_is_that_of_the_normalized_text() -> None:
    """In bytes of UTF-8, whatever the text has by itself; the document is not changed."""
    step = NormalizedLength(3 * len(LONG), lambda text: text.replace("a", "\ufdfa"))
    document = Document(LONG, 7)
    assert step(document) is document
    with pytest.raises(RecordError) as caught:
        step(Document(LONG + "a"))
    assert caught.value.reason == NORMALIZED_TOO_LARGE
    assert str(3 * len(LONG)) in caught.value.detail


def test_without_a_normalizer_it_is_the_text_that_counts() -> None:
    """The recipe's own normalizing has made it long before."""
    step = NormalizedLength(len(LONG) + 1)
    assert step(Document(LONG + "a")).text == LONG + "a"
    with pytest.raises(RecordError, match=NORMALIZED_TOO_LARGE):
        step(Document(LONG + "\u00e4"))


def test_a_short_text_is_not_looked_at() -> None:
    """However long normalizing makes it: it takes little memory, and most texts are short."""
    step = NormalizedLength(1, lambda _: pytest.fail("it was normalized"))
    short = Document(LONG[1:])
    assert step(short) is short
    assert list(step.many(DocumentColumns.of([short, Document("")]))) == []


def test_texts_are_normalized_in_slices() -> None:
    """Of `SLICE_CHARACTERS`, and no further than needed: memory stays bounded while it is measured."""
    sizes = []

    def normalize(text: str) -> str:
        sizes.append(len(text))
        return text * 18

    step = NormalizedLength(18 * 2 * SLICE_CHARACTERS, normalize)
    text = Document("a" * (4 * SLICE_CHARACTERS))
    tracemalloc.start()
    with pytest.raises(RecordError):
        step(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == [SLICE_CHARACTERS] * 3
    assert peak < 3 * 18 * SLICE_CHARACTERS
    sizes.clear()
    step(Document("a" * (2 * SLICE_CHARACTERS)))
    assert sizes == [SLICE_CHARACTERS] * 2


@pytest.mark.parametrize("error", [PanicError("tokenizers panicked"), ValueError("no")])
def test_a_normalizer_that_fails_is_a_tokenizer_that_fails(error: Exception) -> None:
    """On this text; no memory is no answer."""

    def normalize(_: str) -> str:
        raise error

    with pytest.raises(RecordError) as caught:
        NormalizedLength(1, normalize)(Document(LONG))
    assert caught.value.reason == TOKENIZER_FAILED
    error = MemoryError()
    with pytest.raises(MemoryError):
        NormalizedLength(1, normalize)(Document(LONG))


@pytest.mark.parametrize(("most", "limit"), [(1, 3 << 19), (3 << 19, 3 << 19), (3 << 20, 3 << 20)])
def test_limit_follows_the_longest_text(most: int, limit: int) -> None:
    """But a short one is no reason to refuse what normalizing makes long: that is about memory."""
    assert normalized_limit(most) == limit
