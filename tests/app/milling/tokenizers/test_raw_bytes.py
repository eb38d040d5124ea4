"""The engine ``bytes``."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import texts
from tokenmill.app.milling.tokenizers.raw_bytes import RawBytes


@given(st.lists(texts))
def test_tokens_are_the_utf8_bytes(batch: list[str]) -> None:
    """One text after the other in one array, with an offset before each and one at the end."""
    tokens = RawBytes().encode(batch)
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert bytes(tokens.ids.tolist()) == "".join(batch).encode()
    assert [bytes(ids.tolist()).decode() for ids in tokens] == batch
    assert [bytes(tokens[i].tolist()).decode() for i in range(len(tokens))] == batch


@given(texts)
def test_decoding_gives_the_text_back(text: str) -> None:
    """And U+FFFD for a character that a block's border cuts."""
    engine = RawBytes()
    assert engine.decode(engine.encode([text]).ids.tolist()) == text
    assert engine.decode(engine.encode(["aé"]).ids[:2].tolist()) == "a\ufffd"


def test_there_are_256_ids_without_names() -> None:
    """So that a block is uint8."""
    assert RawBytes().vocabulary_size == 256
    assert RawBytes().token_id("a") is None
