"""The engines ``bytes`` and ``gigatoken``, and the probe of each engine.

A fast engine is used while it gives the ids of `tokenizers`, and not a batch longer.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from tests.app.milling.tokenizers.conftest import words
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.strategies import texts
from tokenmill.app.milling.tokenizers import (
    PROBE,
    RAW_BYTES,
    Engine,
    TokenBatch,
    TokenizerFile,
    checked,
    choose_engine,
    gigatoken,
    open_engine,
    probe,
)
from tokenmill.app.milling.tokenizers.checked import (
    BATCH,
    SAMPLE_CHARACTERS,
    SAMPLE_ONE_IN,
    Checked,
    Spelled,
    find_differences,
    first_difference,
    has_new_characters,
    sampled,
)
from tokenmill.app.milling.tokenizers.gigatoken import Gigatoken
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.errors import EngineError, PanicError, SettingsError


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


TOOLS = ["<tool>", "<tool>\u0338", "a<tool>\u00e9<tool>\u0338", "<odd>\u0338 <odd>", "\u00e9 <tool\u0338>"]
NORMALIZED = ["ﬁne ①", "Å Å é e\u0301", "ascii only", "", "ÅNGSTRÖM ½ \uff21", *TOOLS, *PROBE]


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


def unchanged(_: Tokenizer) -> None:
    """Leave the tokenizer as it is."""


def normalized(form: str, tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = getattr(normalizers, form)()


def with_tools(tokenizer: Tokenizer) -> None:
    """Add a normalizer and tokens, whose names may be there before it and not after it, or the other way round."""
    normalized("NFC", tokenizer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<odd>", normalized=True)])


def for_models(tokenizer: Tokenizer) -> None:
    """Say what only models need: it is left out."""
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(3)
    tokenizer.model.dropout = 0.5


def with_digits(tokenizer: Tokenizer) -> None:
    """Put in a pre-tokenizer without a fast form: it is refused or right, for the probe text decides."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )


FORMS = ("NFKC", "NFKD", "NFD", "NFC", "Lowercase", "StripAccents")
"""Where the library lacks one, the reference's runs first; ASCII needs none of the Unicode forms."""


NORMALIZING = [pytest.param(partial(normalized, form), id=form) for form in FORMS]


@pytest.mark.parametrize("change", [unchanged, with_tools, for_models, with_digits, *NORMALIZING])
def test_ids_are_those_of_tokenizers(byte_level: bytes, change: Callable[[Tokenizer], object]) -> None:
    tokenizer = Tokenizer.from_str(byte_level.decode())
    change(tokenizer)
    content = tokenizer.to_str().encode()
    engine, refused = choose_engine(TokenizerFile("changed", content))
    assert change is with_digits or (engine.kind, refused) == ("gigatoken", "")
    reference = HuggingFace(byte_level if change is for_models else content)
    batch, right = engine.encode(NORMALIZED), reference.encode(NORMALIZED)
    assert batch.ids.tolist() == right.ids.tolist()
    assert batch.offsets.tolist() == right.offsets.tolist()
    for number, text in enumerate(NORMALIZED):
        assert engine.encode([text]).ids.tolist() == right[number].tolist()
    assert len(engine.encode([])) == 0


def test_kind_that_it_cannot_do_is_left_to_tokenizers_and_so_is_what_is_asked_of_them(byte_level: bytes) -> None:
    engine, refused = choose_engine(TokenizerFile("words", words()))
    assert engine.kind == "tokenizers"
    assert refused.startswith("gigatoken cannot do this tokenizer: ")
    with pytest.raises(SettingsError, match=r'gigatoken cannot do this tokenizer.*: set engine to "auto" or'):
        choose_engine(TokenizerFile("words", words()), "gigatoken")
    engine, refused = choose_engine(TokenizerFile("byte level", byte_level), "tokenizers")
    assert (engine.kind, refused) == ("tokenizers", "")


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


def test_word_cache_is_dropped_when_the_process_has_grown(byte_level: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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


TEXTS = [f"document {number} says {number * number}" for number in range(3 * SAMPLE_ONE_IN)]


@dataclass
class Wrong:
    """Encodes as ``right`` does, but for the texts that hold ``lies_about``, whose last id is 7; counts its texts."""

    right: HuggingFace
    lies_about: str = "\0nothing"
    seen: list[str] = field(default_factory=list)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        self.seen += texts
        batch = self.right.encode(texts)
        ids = batch.ids.copy()
        for number, text in enumerate(texts):
            if self.lies_about in text:
                ids[batch.offsets[number + 1] - 1] = 7
        return TokenBatch(ids, batch.offsets)


def encoder(encode: Callable[[Sequence[str]], TokenBatch]) -> Any:
    return SimpleNamespace(encode=encode)


def failing_over(part: str, encode: Callable[[Sequence[str]], TokenBatch]) -> Any:
    """Return a fast encoder that does this, and fails as native code does where a text has this part."""

    def fails(texts: Sequence[str]) -> TokenBatch:
        if any(part in text for text in texts):
            raise PanicError("fast panicked")
        return encode(texts)

    return encoder(fails)


@pytest.fixture(scope="module")
def reference(byte_level: bytes) -> HuggingFace:
    return HuggingFace(byte_level)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(Wrong, lies_about="snake_case"), r"does not give the ids of tokenizers: token \d+ of a text is 7 by"),
        # every added token's name is tried, in a text as well
        (partial(Wrong, lies_about=" a <|endoftext|> b"), r"does not give .*: token \d+ of a text is 7 by"),
        # though the reference would encode all of it in its place
        (lambda right: failing_over("snake_case", right.encode), "fails on texts that every engine has to encode"),
    ],
)
def test_engine_that_differs_or_fails_on_the_probe_text_is_refused(
    reference: HuggingFace, make: Callable[[HuggingFace], Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=f"fast {said}"):
        Checked("fast", make(reference), reference)


def test_sampled_text_with_other_ids_stops_the_batch(reference: HuggingFace) -> None:
    fast = Wrong(reference, "document")
    checked = Checked("fast", fast, reference)
    chosen = sampled(fast.encode(TEXTS))
    assert chosen
    for number in chosen:
        for batch in (TEXTS[number : number + 1], TEXTS[max(0, number - 5) : number + 5]):
            with pytest.raises(EngineError, match=rf"is 7 by fast and \d+ by tokenizers, about here: '.*{number**2}'"):
                checked.encode(batch)


@pytest.mark.slow
def test_other_texts_are_not_compared(reference: HuggingFace) -> None:
    fast = Wrong(reference, "document")
    checked = Checked("fast", fast, reference)
    chosen = set(sampled(fast.encode(TEXTS)))
    fast.seen.clear()
    others = [text for number, text in enumerate(TEXTS) if number not in chosen]
    batch = checked.encode(others)
    assert fast.seen == others
    assert all(ids[-1] == 7 for ids in batch)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_about_one_text_in_eight_thousand_is_compared(reference: HuggingFace) -> None:
    """Of texts that differ in a number only; ten times as many as expected would be chosen by chance never."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 900, 1_000_000)
    ids = rng.integers(0, 50_000, 4096).astype(np.uint32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    chosen = sampled(TokenBatch(np.resize(ids, offsets[-1]), offsets))
    assert 0.5 < len(chosen) * SAMPLE_ONE_IN / len(lengths) < 2
    assert 1 <= len(sampled(reference.encode(TEXTS))) <= 30


@given(st.lists(st.lists(st.integers(0, 3), max_size=4)), st.data())
def test_choice_depends_on_the_text_alone(texts: list[list[int]], data: st.DataObject) -> None:
    """Not on its place, its neighbours, or the batch: every worker chooses the same."""
    many = texts * 50 + [[number] for number in range(500)]
    chosen = {tuple(many[number]) for number in sampled(_batch(many))}
    order = data.draw(st.permutations(texts))
    assert {tuple(order[number]) for number in sampled(_batch(order))} == chosen & set(map(tuple, texts))


def test_of_a_long_text_the_beginning_is_compared(reference: HuggingFace, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one long text never holds a worker up."""
    monkeypatch.setattr("tokenmill.app.milling.tokenizers.checked.SAMPLE_ONE_IN", 1)
    fast = Wrong(reference)
    checked = Checked("fast", fast, reference)
    fast.seen.clear()
    text = "long " * SAMPLE_CHARACTERS
    checked.encode([text, "short"])
    assert fast.seen == [text, "short", text[:SAMPLE_CHARACTERS]]


def test_ids_that_are_used_are_those_that_are_compared(reference: HuggingFace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is wrong in batches alone is found, too."""
    monkeypatch.setattr("tokenmill.app.milling.tokenizers.checked.SAMPLE_ONE_IN", 1)
    wrong = Wrong(reference, "second")
    fast = encoder(lambda texts: wrong.encode(texts) if len(texts) > 1 else reference.encode(texts))
    checked = Checked("fast", fast, reference)
    with pytest.raises(EngineError, match="is 7 by fast"):
        checked.encode(["first", "a second text"])


def test_everything_but_encoding_is_the_references(reference: HuggingFace) -> None:
    checked = Checked("fast", Wrong(reference), reference)
    assert (checked.kind, checked.vocabulary_size) == ("fast", reference.vocabulary_size)
    assert checked.token_id("<|endoftext|>") == reference.token_id("<|endoftext|>")
    assert checked.decode(checked.encode([PROBE[0]]).ids.tolist()) == PROBE[0]
    assert len(checked.encode([])) == 0


@pytest.mark.parametrize(
    ("one", "other", "at"), [([], [], None), ([1], [1], None), ([1], [2], 0), ([1, 2], [1], 1), ([1], [1, 2], 1)]
)
def test_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(np.array(one, np.uint32), np.array(other, np.uint32)) == at


def _batch(texts: Sequence[Sequence[int]]) -> TokenBatch:
    offsets: npt.NDArray[np.int64] = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return TokenBatch(np.array([number for text in texts for number in text], np.uint32), offsets)


def test_engine_that_encodes_what_the_reference_cannot_is_stopped() -> None:
    """The text has no ids, so any are wrong."""
    reference = HuggingFace(panicking())
    bold = encoder(lambda texts: reference.encode([text.replace(HARMFUL, "aaa") for text in texts]))
    checked = Checked("fast", bold, reference)
    assert not checked.encode(["one"]).failed
    with pytest.raises(EngineError, match=r"tokenizers fails on a text that fast encodes \(.*retry-limit"):
        checked._compare(HARMFUL, reference.encode(["aaa"])[0])


def look_up(texts: Sequence[str]) -> TokenBatch:
    """Encode as a word model that knows nothing of special tokens."""
    vocabulary = {"a": 1, "b": 2, "<eos>": 3}
    return _batch([[vocabulary.get(word, 0) for word in text.split()] for text in texts])


def test_name_of_a_special_token_among_the_words_is_spelled_out() -> None:
    """As `tokenizers` is made to do it; a batch without one is the fast encoder's, though that has other ids."""
    reference = HuggingFace(words())
    texts = ["a b", "a <eos> b"]
    batch = Spelled(encoder(look_up), reference).encode(texts)
    assert batch.ids.tolist() == reference.encode(texts).ids.tolist()
    assert 3 not in batch.ids
    others = encoder(lambda texts: _batch([[9] * len(text.split()) for text in texts]))
    assert Spelled(others, reference).encode(["a c", "b"]).ids.tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("text", "new"),
    [
        *(("", False), ("ascii", False), ("\u00e9\u4e2d\U0001f600", False), ("a\u1acfb", True), ("\ua7ceb", True)),
        *(("\U00033479", True), ("x\U000323b0", True), ("\U000323af", False), ("\U0003347a", False)),
    ],
)
def test_texts_with_characters_of_the_newest_unicode_are_told_apart(text: str, new: bool) -> None:  # noqa: FBT001
    assert has_new_characters(text) is new


def test_text_on_which_the_fast_encoder_fails_is_the_references(caplog: pytest.LogCaptureFixture) -> None:
    spelled = Spelled(failing_over("b", look_up), HuggingFace(words()))
    batch = spelled.encode(["a", "a b", "b", "a a"])
    assert [ids.tolist() for ids in batch] == [[1], [1, 2], [2], [1, 1]]
    assert spelled.failures == 2
    assert "fast panicked" in caplog.text
    assert not spelled.encode([]).ids.tolist()


def test_text_on_which_both_fail_is_refused() -> None:
    never = encoder(Mock(side_effect=PanicError("not even one")))
    assert set(Spelled(never, HuggingFace(panicking())).encode(["one", HARMFUL]).failed) == {1}
    # no memory says nothing about the text
    with pytest.raises(MemoryError):
        Spelled(encoder(Mock(side_effect=MemoryError)), HuggingFace(words())).encode(["a"])


@pytest.mark.parametrize("run", [" ", "a"])
def test_uniform_text_is_the_references(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that steps back over all of it makes the reference fail, and only the reference tells."""
    monkeypatch.setattr(checked, "LONG_RUN", 4)
    reference = HuggingFace(words())
    with patch.object(reference, "encode", wraps=reference.encode) as asked:
        Spelled(encoder(look_up), reference).encode([f"a b{run * 2} a b a", "a b"])
        assert not asked.called
        Spelled(encoder(look_up), reference).encode([f"a {run * 5} b", "a b"])
        assert [call.args for call in asked.call_args_list] == [([f"a {run * 5} b"],)]


BYTES = open_engine(TokenizerFile(RAW_BYTES, None))


def cutting(is_wrong: Callable[[str], bool]) -> Any:
    return encoder(lambda texts: BYTES.encode([text[:-1] if is_wrong(text) else text for text in texts]))


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
    found = find_differences(cutting(is_wrong), BYTES, ["the quick brown fox jumps"], ["<pad>"], lambda n: n > 1e5)
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
        engine = Mock(wraps=BYTES)
        assert list(find_differences(engine, BYTES, ["one", "two"], [], lambda tried: tried >= 2 * BATCH)) == []
        runs.append([text for call in engine.encode.call_args_list for text in call.args[0]])
    assert runs[0] == runs[1]
    assert runs[0][:2] == ["one", "two"]
    assert 2 * BATCH <= len(runs[0]) < 4 * BATCH


def test_every_wrong_text_of_a_batch_is_named() -> None:
    found = find_differences(cutting(bool), BYTES, ["a"], [], lambda _: False)
    assert next(found).text == "a"
    assert all(len(difference.text) == 1 for difference in islice(found, 20))
