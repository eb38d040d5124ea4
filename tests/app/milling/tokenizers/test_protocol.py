"""The engine ``bytes``."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.tokenizers.conftest import words
from tests.app.milling.tokenizers.panicking import panicking
from tests.strategies import texts
from tokenmill.app.milling.tokenizers import PROBE, Engine, TokenizerFile, open_engine, probe
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.errors import SettingsError


@given(st.lists(texts))
def test_tokens_are_the_utf8_bytes(batch: list[str]) -> None:
    tokens = RawBytes().encode(batch)
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert bytes(tokens.ids.tolist()) == "".join(batch).encode()
    assert [bytes(ids.tolist()).decode() for ids in tokens] == batch
    assert [bytes(tokens[i].tolist()).decode() for i in range(len(tokens))] == batch


@given(texts)
def test_decoding_gives_the_text_back(text: str) -> None:
    engine = RawBytes()
    assert engine.decode(engine.encode([text]).ids.tolist()) == text
    assert engine.decode(engine.encode(["aé"]).ids[:2].tolist()) == "a\ufffd"


def test_there_are_256_ids_without_names() -> None:
    assert RawBytes().vocabulary_size == 256
    assert RawBytes().token_id("a") is None


def test_the_probe_of_raw_bytes_is_known() -> None:
    """It changes when the text does, and every fingerprint with it: so it must not."""
    digest = hashlib.sha256()
    for text in PROBE:
        data = text.encode()
        digest.update(struct.pack(f"<I{len(data)}I", len(data), *data))
    assert probe(open_engine(TokenizerFile("bytes", None))) == digest.hexdigest()
    assert digest.hexdigest() == "3a10105cf8004ec749812c1480ea65614eea843d1a8d9f960cac15ea98a43a11"


def test_tokenizers_that_differ_have_other_probes(byte_level_engine: Engine) -> None:
    engines = [
        open_engine(TokenizerFile("words", words())),
        byte_level_engine,
        open_engine(TokenizerFile("bytes", None)),
    ]
    assert len({probe(engine) for engine in engines}) == 3
    assert probe(byte_level_engine) == probe(byte_level_engine)


def test_the_probe_looks_at_all_kinds_of_text() -> None:
    """Every plane that has text, all ASCII characters but some controls, texts that are empty and long."""
    characters = set("".join(PROBE))
    assert {chr(code) for code in range(33, 127)} <= characters
    assert {ord(character) >> 16 for character in characters} >= {0, 1, 14, 16}
    assert "" in PROBE
    assert any("<|endoftext|>" in text for text in PROBE)
    assert max(map(len, PROBE)) > 500


def test_tokenizer_that_panics_on_the_probe_is_refused() -> None:
    engine = open_engine(TokenizerFile("own", panicking("(a+)+\\$")), "tokenizers")
    with pytest.raises(SettingsError, match=r"fails on a text .*retry-limit-in-match.*'a{40}'.* correct its file"):
        probe(engine)
