"""The search finds texts on which two engines differ, and makes them short."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pytest

from tokenmill.app.milling.tokenizers import RAW_BYTES, TokenBatch, TokenizerFile, open_engine
from tokenmill.app.milling.tokenizers.differences import BATCH, find_differences

BYTES = open_engine(TokenizerFile(RAW_BYTES, None))


@dataclass
class Wrong:
    """Raw bytes, but for texts of which ``is_wrong`` is true: they lose their last byte. Remembers its texts."""

    is_wrong: Callable[[str], bool]
    seen: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return ids that are mostly right."""
        self.seen += texts
        return BYTES.encode([text[:-1] if self.is_wrong(text) else text for text in texts])


@pytest.mark.parametrize(
    ("is_wrong", "shortest"),
    [
        (lambda text: "brown fox" in text, "brown fox"),
        (lambda text: "\u212a" in text, "\u212a"),
        (lambda text: "<pad>" in text, "<pad>"),
        (lambda text: "\t \t" in text or "\t  \t" in text, None),
        (lambda text: any(0x1F00 <= ord(c) < 0x2000 for c in text), None),
        (lambda text: any(len(word) > 3000 for word in text.split()), None),
    ],
    ids=["given text", "odd character", "added token", "white space", "Greek", "long word"],
)
def test_a_difference_is_found_and_shrunk(is_wrong: Callable[[str], bool], shortest: str | None) -> None:
    """In the text given, in a special token's name, in a category of Unicode, in white space, in a long word."""
    found = find_differences(
        Wrong(is_wrong), BYTES, ["the quick brown fox jumps"], ["<pad>"], lambda tried: tried > 1e5
    )
    difference = next(found)
    assert is_wrong(difference.text)
    assert difference.ids == difference.right[: len(difference.ids)]
    assert bytes(difference.right).decode() == difference.text
    if shortest is not None:
        assert difference.text == shortest
    for at in range(0, len(difference.text), max(1, len(difference.text) // 50)):
        assert not is_wrong(difference.text[:at] + difference.text[at + 1 :])


def test_engines_that_agree_are_tried_until_it_is_enough() -> None:
    """Nothing is yielded; the same texts are tried each time, and the caller says when to end."""
    runs = []
    for _ in range(2):
        engine = Wrong(lambda _: False)
        assert list(find_differences(engine, BYTES, ["one", "two"], [], lambda tried: tried >= 2 * BATCH)) == []
        runs.append(engine.seen)
    assert runs[0] == runs[1]
    assert runs[0][:2] == ["one", "two"]
    assert 2 * BATCH <= len(runs[0]) < 4 * BATCH


def test_every_wrong_text_of_a_batch_is_named() -> None:
    """One difference does not hide another."""
    found = find_differences(Wrong(bool), BYTES, ["a"], [], lambda _: False)
    assert next(found).text == "a"
    assert all(len(difference.text) == 1 for difference in islice(found, 20))
