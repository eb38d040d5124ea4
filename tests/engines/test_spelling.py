"""Special tokens that a model finds by itself are spelled out, whichever engine found them."""

from collections.abc import Sequence

import numpy as np

from tests.engines.conftest import words
from tokenmill.engines import TokenBatch
from tokenmill.engines.hugging_face import HuggingFace
from tokenmill.engines.spelling import Spelled


class _Words:
    """A word model that looks its words up and knows nothing of special tokens."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        vocabulary = {"a": 1, "b": 2, "<eos>": 3}
        ids = [[vocabulary.get(word, 0) for word in text.split()] for text in texts]
        flat = np.array([number for numbers in ids for number in numbers], np.uint32)
        return TokenBatch(flat, np.cumsum([0, *map(len, ids)], dtype=np.int64))


def test_name_of_a_special_token_among_the_words_is_spelled_out() -> None:
    """As `tokenizers` is made to do it; the id never stands in a block because of a text."""
    reference = HuggingFace(words())
    texts = ["a b", "a <eos> b"]
    batch = Spelled(_Words(), reference).encode(texts)
    assert batch.ids.tolist() == reference.encode(texts).ids.tolist()
    assert 3 not in batch.ids


def test_batch_without_one_is_the_fast_encoders() -> None:
    """The reference is not asked: the fast encoder calls an unknown word 0, too, but this one calls it 9."""

    class Nine(_Words):
        def encode(self, texts: Sequence[str]) -> TokenBatch:
            batch = super().encode(texts)
            return TokenBatch(np.where(batch.ids == 0, 9, batch.ids).astype(np.uint32), batch.offsets)

    assert Spelled(Nine(), HuggingFace(words())).encode(["a c", "b"]).ids.tolist() == [1, 9, 2]
