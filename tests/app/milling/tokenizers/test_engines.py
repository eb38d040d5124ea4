"""The engines ``bytes`` and ``gigatoken``, and the probe of each engine."""

import hashlib
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from tests.app.milling.tokenizers.conftest import words
from tests.app.milling.tokenizers.panicking import panicking
from tests.strategies import texts
from tokenmill.app.milling.tokenizers import PROBE, Engine, TokenizerFile, choose_engine, gigatoken, open_engine, probe
from tokenmill.app.milling.tokenizers.gigatoken import Gigatoken
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.errors import SettingsError


@given(st.lists(texts))
def test_tokens_are_the_utf8_bytes(batch: list[str]) -> None:
    engine = RawBytes()
    tokens = engine.encode(batch)
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert bytes(tokens.ids.tolist()) == "".join(batch).encode()
    assert [bytes(ids.tolist()).decode() for ids in tokens] == batch
    assert [bytes(tokens[i].tolist()).decode() for i in range(len(tokens))] == batch
    assert engine.decode(tokens.ids.tolist()) == "".join(batch)
    assert engine.decode(engine.encode(["aé"]).ids[:2].tolist()) == "a\ufffd"
    assert (engine.vocabulary_size, engine.token_id("a")) == (256, None)


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


NORMALIZED = ["ﬁne ①", "Å Å é e\u0301", "ascii only", "", "ÅNGSTRÖM ½ \uff21", *PROBE]


def test_ids_are_those_of_tokenizers(byte_level: bytes) -> None:
    right = HuggingFace(byte_level).encode(PROBE)
    engine = Gigatoken(byte_level)
    batch = engine.encode(PROBE)
    assert batch.ids.tolist() == right.ids.tolist()
    assert batch.offsets.tolist() == right.offsets.tolist()
    for number, text in enumerate(PROBE):
        assert engine.encode([text]).ids.tolist() == right[number].tolist()
    assert len(engine.encode([])) == 0


@pytest.mark.slow
def test_threads_share_an_engine(byte_level: bytes) -> None:
    """Partitions are milled side by side: small and large batches, and a cache that is thrown away meanwhile."""
    engine = Gigatoken(byte_level)
    reference = HuggingFace(byte_level)
    batches = [[f"text {number} " * size] for number, size in enumerate([1, 5, 20_000, 3, 30_000])]
    expected = [reference.encode(batch).ids.tolist() for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            found = pool.map(lambda batch: engine.encode(batch).ids.tolist(), batches * 4)
            assert list(found) == expected * 4


def test_what_a_file_says_of_padding_truncation_and_dropout_is_left_out(byte_level: bytes) -> None:
    tokenizer = Tokenizer.from_str(byte_level.decode())
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(3)
    tokenizer.model.dropout = 0.5
    texts = ["a longer text than three tokens"] * 3
    expected = Gigatoken(byte_level).encode(texts)
    assert Gigatoken(tokenizer.to_str().encode()).encode(texts).ids.tolist() == expected.ids.tolist()


@pytest.mark.parametrize("form", ["NFKC", "NFKD", "NFD", "NFC", "Lowercase", "StripAccents"])
def test_normalizers_are_those_of_tokenizers(byte_level: bytes, form: str) -> None:
    """Where the library lacks one, the reference's runs first; ASCII needs none of the Unicode forms."""
    tokenizer = Tokenizer.from_str(byte_level.decode())
    tokenizer.normalizer = getattr(normalizers, form)()
    content = tokenizer.to_str().encode()
    engine, refused = choose_engine(TokenizerFile(form, content))
    assert (engine.kind, refused) == ("gigatoken", "")
    assert engine.encode(NORMALIZED).ids.tolist() == HuggingFace(content).encode(NORMALIZED).ids.tolist()


def test_kind_that_it_cannot_do_is_left_to_tokenizers_and_so_is_what_is_asked_of_them(byte_level: bytes) -> None:
    engine, refused = choose_engine(TokenizerFile("words", words()))
    assert engine.kind == "tokenizers"
    assert refused.startswith("gigatoken cannot do this tokenizer: ")
    with pytest.raises(SettingsError, match=r'gigatoken cannot do this tokenizer.*: set engine to "auto" or'):
        choose_engine(TokenizerFile("words", words()), "gigatoken")
    engine, refused = choose_engine(TokenizerFile("byte level", byte_level), "tokenizers")
    assert (engine.kind, refused) == ("tokenizers", "")


def test_pre_tokenizer_without_a_fast_form_is_refused_or_right(byte_level: bytes) -> None:
    """Never wrong: whatever the library makes of it, the probe text decides."""
    tokenizer = Tokenizer.from_str(byte_level.decode())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    content = tokenizer.to_str().encode()
    engine, _ = choose_engine(TokenizerFile("digits", content))
    assert engine.encode(NORMALIZED).ids.tolist() == HuggingFace(content).encode(NORMALIZED).ids.tolist()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"pre_tokenizer": None}, "a missing pre_tokenizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}}, "use_regex = false"),
        ({"added_tokens": [{"id": 999, "content": "foo", "special": False, "single_word": True}]}, "single_word"),
        ({"model": {"end_of_word_suffix": "@@"}}, "end_of_word_suffix"),
        ({"model": {"continuing_subword_prefix": "@@"}}, "continuing_subword_prefix"),
    ],
)
def test_what_the_library_would_ignore_is_refused(byte_level: bytes, changed: dict[str, Any], why: str) -> None:
    """It loads such files, and gives other ids than `tokenizers`."""
    content = json.loads(byte_level)
    model = content["model"] | changed.get("model", {})
    with pytest.raises(SettingsError, match=f"it would ignore {why}"):
        Gigatoken(json.dumps(content | changed | {"model": model}).encode())


def test_cache_of_words_is_thrown_away_when_the_process_has_grown(
    byte_level: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's cache has no bound; with a new one the ids are the same, and the next growth counts from there."""
    size = 1 << 30
    monkeypatch.setattr(gigatoken, "_process_bytes", lambda: size)
    monkeypatch.setattr(gigatoken, "CACHE_CHECK_BYTES", 1000)
    engine = Gigatoken(byte_level)
    expected = engine.encode(PROBE).ids.tolist()
    loaded = [engine._tokenizer]
    for grown in (0, gigatoken.CACHE_BYTES, 1, 0, gigatoken.CACHE_BYTES, 1):
        size += grown
        assert engine.encode([*PROBE, "word " * 1000]).ids[: len(expected)].tolist() == expected
        if engine._tokenizer is not loaded[-1]:
            loaded.append(engine._tokenizer)
    assert len(loaded) == 3


def test_process_size_is_that_of_the_system() -> None:
    before = gigatoken._process_bytes()
    held = b"\1" * (256 << 20)
    assert before + len(held) // 2 < gigatoken._process_bytes() < 1 << 40
