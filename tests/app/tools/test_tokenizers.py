"""Training a tokenizer."""

import pydoc_data.topics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.strategies import texts
from tokenmill.app.tools.tokenizers import _spread_sample, train_tokenizer
from tokenmill.errors import InputError, SettingsError

TOPICS = list(pydoc_data.topics.topics.values())


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(TOPICS, vocabulary_size=2000)


@given(text=texts)
def test_every_text_comes_back(trained: Tokenizer, text: str) -> None:
    """All 256 bytes are in the vocabulary, so nothing is unknown."""
    trained.encode_special_tokens = True
    assert trained.decode(trained.encode(text).ids, skip_special_tokens=False) == text


def test_it_has_the_size_asked_for_one_special_token_and_learnt_the_text(trained: Tokenizer) -> None:
    assert trained.get_vocab_size() == 2000
    assert trained.token_to_id("<|endoftext|>") == 0
    assert [token.content for token in trained.get_added_tokens_decoder().values()] == ["<|endoftext|>"]
    assert trained.encode(" the function").tokens == ["Ġthe", "Ġfunction"]
    size = sum(len(text.encode()) for text in TOPICS)
    assert sum(len(encoding.ids) for encoding in trained.encode_batch_fast(TOPICS)) < size / 3
    # Byte for byte the same, so that its hash is the same on every machine.
    assert train_tokenizer(iter(TOPICS), vocabulary_size=2000).to_str() == trained.to_str()


@given(st.lists(st.text(max_size=300)), st.integers(1, 2000))
def test_a_sample_is_bounded_and_in_order(batch: list[str], limit: int) -> None:
    pieces, sample = [text for text in batch if text], _spread_sample(batch, limit)
    if sum(len(piece.encode()) for piece in pieces) <= limit:
        assert sample == pieces
    else:
        rest = iter(pieces)
        assert sample
        assert all(piece in rest for piece in sample)
        assert len(sample) == 1 or sum(len(piece.encode()) for piece in sample) <= limit


def test_a_sample_is_spread_evenly_and_never_holds_much() -> None:
    sample = [int(piece) for piece in _spread_sample((f"{number:010d}" for number in range(100_000)), 10_000)]
    step = sample[1]
    assert sample == list(range(0, 100_000, step))
    assert 500 <= len(sample) <= 1000
    one = _spread_sample(["a" * 16384 + "b" * 16384 + "c" * 16384 + "d"], 40_000)
    assert [piece[0] for piece in one] == ["a", "c"]


def test_no_text_and_no_room_are_refused() -> None:
    with pytest.raises(InputError, match="no text"):
        train_tokenizer(iter(("", "")), vocabulary_size=300)
    with pytest.raises(SettingsError, match="256"):
        train_tokenizer(TOPICS, vocabulary_size=256)
