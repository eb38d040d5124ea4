"""The fast engine: what it can do, what it refuses, and what it does not do to memory."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.milling.tokenizers import PROBE, TokenizerFile, choose_engine, gigatoken
from tokenmill.app.milling.tokenizers.gigatoken import Gigatoken
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
from tokenmill.errors import SettingsError

NORMALIZED = ["ﬁne ①", "Å Å é e\u0301", "ascii only", "", "ÅNGSTRÖM ½ \uff21", *PROBE]


def _with(content: bytes, **changed: object) -> bytes:
    return json.dumps(json.loads(content) | changed).encode()


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


def test_kind_that_it_cannot_do_is_left_to_tokenizers() -> None:
    engine, refused = choose_engine(TokenizerFile("words", words()))
    assert engine.kind == "tokenizers"
    assert refused.startswith("gigatoken cannot do this tokenizer: ")
    with pytest.raises(SettingsError, match=r'gigatoken cannot do this tokenizer.*: set engine to "auto" or'):
        choose_engine(TokenizerFile("words", words()), "gigatoken")


def test_reference_is_used_where_it_is_asked_for(byte_level: bytes) -> None:
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
    ],
)
def test_what_the_library_would_ignore_is_refused(byte_level: bytes, changed: dict[str, object], why: str) -> None:
    """It loads such files, and gives other ids than `tokenizers`."""
    with pytest.raises(SettingsError, match=f"it would ignore {why}"):
        Gigatoken(_with(byte_level, **changed))


@pytest.mark.parametrize("name", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_models_with_marks_at_words_are_refused(byte_level: bytes, name: str) -> None:
    """The library leaves the marks out."""
    model = json.loads(byte_level)["model"] | {name: "@@"}
    with pytest.raises(SettingsError, match=f"it would ignore {name}"):
        Gigatoken(_with(byte_level, model=model))


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
