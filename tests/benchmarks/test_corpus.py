"""The benchmark's documents."""

from benchmarks.corpus import documents


def test_the_same_documents_come_each_time() -> None:
    """So that every contender, and every run on this installation, has the same work."""
    assert list(documents(500, 20_000)) == list(documents(500, 20_000))


def test_documents_have_about_the_size_that_was_asked_for() -> None:
    """They end at the first line end from there on, and together have what was asked for."""
    found = [len(document.text.encode()) for document in documents(500, 20_000)]
    assert min(found) >= 500
    assert sum(found) / len(found) < 700
    assert 20_000 <= sum(found) < 20_000 + max(found)
