"""Special tokens that a model finds by itself are spelled out, whichever engine found them."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from tests.app.milling.tokenizers.conftest import words
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tokenmill.app.milling.tokenizers import TokenBatch, TokenizerFile, open_engine, spelling
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
from tokenmill.app.milling.tokenizers.spelling import Spelled, has_new_characters
from tokenmill.errors import PanicError


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


@pytest.mark.parametrize(
    ("text", "new"),
    [
        *(("", False), ("ascii", False), ("\u00e9\u4e2d\U0001f600", False), ("a\u1acfb", True), ("\ua7ceb", True)),
        *(("\U00033479", True), ("x\U000323b0", True), ("\U000323af", False), ("\U0003347a", False)),
    ],
)
def test_texts_with_characters_of_the_newest_unicode_are_told_apart(text: str, new: bool) -> None:  # noqa: FBT001
    """Their first and last code points are, and their neighbours are not."""
    assert has_new_characters(text) is new


def test_names_of_added_tokens_beside_other_than_ascii_are_left_to_the_reference(byte_level: bytes) -> None:
    """With a normalizer, a name may be there before it and not after it, or the other way round."""
    tokenizer = Tokenizer.from_str(byte_level.decode())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<odd>", normalized=True)])
    content = tokenizer.to_str().encode()
    engine = open_engine(TokenizerFile("tools", content), "gigatoken")
    texts = ["<tool>", "<tool>\u0338", "a<tool>\u00e9<tool>\u0338", "<odd>\u0338 <odd>", "\u00e9 <tool\u0338>"]
    assert engine.encode(texts).ids.tolist() == HuggingFace(content).encode(texts).ids.tolist()


class _Failing(_Words):
    """A fast encoder that fails on texts with a ``b``: in a batch, and by themselves."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        if any("b" in text for text in texts):
            raise PanicError("fast panicked")
        return super().encode(texts)


def test_text_on_which_the_fast_encoder_fails_is_the_references(caplog: pytest.LogCaptureFixture) -> None:
    """The others stay with the fast one; the log tells."""
    reference = HuggingFace(words())
    spelled = Spelled(_Failing(), reference)
    texts = ["a", "a b", "b", "a a"]
    batch = spelled.encode(texts)
    assert [ids.tolist() for ids in batch] == [[1], [1, 2], [2], [1, 1]]
    assert spelled.failures == 2
    assert "fast panicked" in caplog.text
    assert not spelled.encode([]).ids.tolist()


def test_text_on_which_both_fail_is_refused() -> None:
    """As the reference refuses it."""
    batch = Spelled(_Never(), HuggingFace(panicking())).encode(["one", HARMFUL])
    assert set(batch.failed) == {1}


class _Never:
    def encode(self, texts: Sequence[str]) -> TokenBatch:
        raise PanicError(f"not even one of {len(texts)}")


def test_no_memory_is_no_answer() -> None:
    """It says nothing about the text."""

    class Full(_Words):
        def encode(self, texts: Sequence[str]) -> TokenBatch:
            raise MemoryError(len(texts))

    with pytest.raises(MemoryError):
        Spelled(Full(), HuggingFace(words())).encode(["a"])


@pytest.mark.parametrize("run", [" ", "a"])
def test_uniform_text_is_the_references(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that steps back over all of it makes the reference fail, and only the reference tells."""
    monkeypatch.setattr(spelling, "LONG_RUN", 4)
    reference = HuggingFace(words())
    with patch.object(reference, "encode", wraps=reference.encode) as asked:
        Spelled(_Words(), reference).encode([f"a b{run * 2} a b a", "a b"])
        assert not asked.called
        Spelled(_Words(), reference).encode([f"a {run * 5} b", "a b"])
        assert [call.args for call in asked.call_args_list] == [([f"a {run * 5} b"],)]
