"""The engine ``tokenizers``."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, __version__

from tests.app.milling.tokenizers.conftest import around, word_model, words
from tests.app.milling.tokenizers.panicking import HARMFUL, SLOW, panicking
from tests.mills import RAW
from tests.strategies import texts
from tests.vocabularies import unigram
from tests.vocabularies.conversions import spelled
from tests.vocabularies.files import added_token
from tokenmill.app.milling.tokenizers import PROBE, TOKENIZER_FAILED, Engine, TokenizerFile, hugging_face, joined
from tokenmill.app.milling.tokenizers.hugging_face import HARMLESS, HuggingFace, Template, lengthening, template_of
from tokenmill.documents import MAX_TOKENIZED_BYTES
from tokenmill.errors import PanicError, SettingsError

special_looking = st.lists(st.sampled_from(["<|endoftext|>", "<|endoftext", "|>", " ", "a", "\n"])).map("".join)


def _ids(engine: Engine, text: str) -> list[int]:
    return list(map(int, engine.encode([text]).ids))


@given(batch=st.lists(texts | special_looking))
def test_ids_do_not_depend_on_the_batch(byte_level_engine: Engine, batch: list[str]) -> None:
    tokens = byte_level_engine.encode(batch)
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert (tokens.offsets[0], tokens.offsets[-1]) == (0, len(tokens.ids))
    assert [ids.tolist() for ids in tokens] == [_ids(byte_level_engine, text) for text in batch]


@given(text=texts | special_looking)
def test_byte_level_tokens_spell_the_text(byte_level_engine: Engine, byte_level: bytes, text: str) -> None:
    """Each token stands for bytes (by the file's own vocabulary), and together they are the text's UTF-8."""
    names = {number: name for name, number in json.loads(byte_level)["model"]["vocab"].items()}
    assert "".join(names[number] for number in _ids(byte_level_engine, text)) == spelled(text.encode())
    assert byte_level_engine.decode(_ids(byte_level_engine, text)) == text


def test_special_tokens_in_a_text_are_text(byte_level_engine: Engine) -> None:
    """No text can end a document, and decoding shows what was written."""
    end = byte_level_engine.token_id("<|endoftext|>")
    ids = _ids(byte_level_engine, "a <|endoftext|> b")
    assert end is not None
    assert end not in ids
    assert byte_level_engine.decode([*ids, end]) == "a <|endoftext|> b<|endoftext|>"
    assert HuggingFace(words()).token_id("<eos>") == 3
    assert HuggingFace(words(**unigram_model())).decode([1]) == "</s>"


def unigram_model() -> dict[str, Any]:
    scores = {"<unk>": 0.0, "</s>": 0.0, "a": -1.0, "<": -2.0, "/": -2.0, "s": -2.0, ">": -2.0, "s>": -3.0}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [*scores.items()], "byte_fallback": False}
    return {"model": model, "pre_tokenizer": None, "added_tokens": [added_token(0, "<unk>"), added_token(1, "</s>")]}


def byte_fallback_model() -> dict[str, Any]:
    """Return a BPE with byte fallback as its trainer makes it: it has no other way to name bytes than as special."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "<", "0", "x", ">", *"CA39"]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "byte_fallback": True}
    added = [added_token(number, name) for number, name in enumerate(names[:257])]
    return {"model": model, "pre_tokenizer": None, "added_tokens": added}


PADDING = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 3, "pad_type_id": 0, "pad_token": "<eos>"}
TRUNCATION = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("parts", "text", "ids"),
    [
        # a text's special tokens are text: words that are unknown, or spelled, though the vocabulary has each as one
        ({}, "a <eos> b<eos>", [1, 0, 0, 0]),
        (unigram_model(), "a</s>a", [2, 3, 4, 7, 2]),
        (unigram_model(), "aZa<unk>s>", [2, 0, 2, 0, 7]),
        (byte_fallback_model(), "a\u00e9a", [257, 1 + 0xC3, 1 + 0xA9, 257]),
        # added tokens that are not special are matched
        ({"added_tokens": [added_token(4, "b<", special=False)]}, "a b< ab<b", [1, 4, 1, 4, 2]),
        # truncation, padding and tokens around a text, which are for models, are not the text's tokens
        ({"truncation": TRUNCATION}, "a b a b", [1, 2, 1, 2]),
        ({"padding": PADDING}, "a b a b", [1, 2, 1, 2]),
        ({"post_processor": around("<eos>", "$A", number=3)}, "a b a b", [1, 2, 1, 2]),
    ],
)
def test_a_texts_tokens_are_those_of_what_is_written(parts: dict[str, Any], text: str, ids: list[int]) -> None:
    engine = HuggingFace(words(**parts))
    assert [found.tolist() for found in engine.encode(["a", text, "a"])] == [_ids(engine, "a"), ids, _ids(engine, "a")]


def test_dropout_is_ignored(byte_level: bytes, byte_level_engine: Engine) -> None:
    content = json.loads(byte_level)
    content["model"]["dropout"] = 0.9
    text = PROBE[0] * 20
    random = Tokenizer.from_str(json.dumps(content)).encode(text).ids
    engine = HuggingFace(json.dumps(content).encode())
    assert _ids(engine, text) == _ids(byte_level_engine, text) != random


@pytest.mark.slow
def test_many_and_long_texts_are_encoded_in_order(byte_level_engine: Engine) -> None:
    """More than the library is given in one call, and a million characters without a space."""
    batch = ["x" * 1_000_000, *(f"number {n} " * 1000 for n in range(100)), "語" * 300_000, ""]
    tokens = byte_level_engine.encode(batch)
    assert [byte_level_engine.decode(ids.tolist()) for ids in tokens] == batch


def test_every_id_is_below_the_vocabulary_size() -> None:
    model = word_model("[UNK]") | {"vocab": {"[UNK]": 0, "a": 1, "<far>": 70_000}}
    engine = HuggingFace(words(added_tokens=[added_token(70_000, "<far>")], model=model))
    assert engine.vocabulary_size == 70_001
    assert engine.token_id("<far>") == 70_000
    assert HuggingFace(words(added_tokens=[added_token(4, "b<", special=False)])).vocabulary_size == 5  # in no model


def with_part(name: str, part: dict[str, Any]) -> bytes:
    return json.dumps(json.loads(words()) | {name: part}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "cannot be loaded"),
        (with_part("pre_tokenizer", {"type": "OfNextYear"}), rf"by tokenizers {__version__}.* a later version"),
        (with_part("normalizer", {"type": "Sequence", "normalizers": [{"type": "New"}]}), "install that version"),
        (b"\xff", "cannot be loaded"),
        (b"<html>", "cannot be loaded"),
        (words(model=word_model("a") | {"unk_token": "[UNK]"}, added_tokens=[]), "unk_token"),
        (words(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]), "no token at all"),
    ],
)
def test_a_tokenizer_that_cannot_encode_every_text_is_refused(content: bytes, message: str) -> None:
    """At start, not at the first text that it fails on."""
    with pytest.raises(SettingsError, match=message):
        HuggingFace(content)


@pytest.mark.slow
def test_text_on_which_the_library_panics_has_no_ids_and_the_others_have_theirs() -> None:
    engine = HuggingFace(panicking())
    for some in (["one", HARMFUL, "two", HARMFUL], [HARMFUL], ["one", f"three {HARMFUL} four"]):
        batch = engine.encode(some)
        assert set(batch.failed) == {at for at, text in enumerate(some) if HARMFUL in text}
        assert [ids.tolist() for ids in batch] == [
            [] if at in batch.failed else engine.encode([text]).ids.tolist() for at, text in enumerate(some)
        ]
        assert {error.reason for error in batch.failed.values()} == {TOKENIZER_FAILED}
        assert "retry-limit-in-match" in batch.failed[max(batch.failed)].detail
    assert not engine.encode(["one", "two"]).failed


def test_failed_texts_are_known_beyond_one_call_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their indices are those of all texts, also where these are divided, parted and joined."""
    monkeypatch.setattr(hugging_face, "_CALL_CHARACTERS", 10)
    engine = HuggingFace(panicking())
    batch = engine.encode(["one", "two", HARMFUL, "three", HARMFUL])
    assert set(batch.failed) == {2, 4}
    assert set(batch.part(2, 4).failed) == {0}
    assert set(joined([batch.part(0, 3), batch.part(3, 5), batch]).failed) == {2, 4, 7, 9}


def test_library_is_the_same_after_panics_in_several_threads() -> None:
    engine, fresh = HuggingFace(panicking()), HuggingFace(panicking())
    many = [HARMFUL if number % 2 else f"text {number} " * 50 for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda text: engine.encode([text]), many))
    assert [bool(batch.failed) for batch in batches] == [text == HARMFUL for text in many]
    for batch, text in zip(batches, many, strict=True):
        if not batch.failed:
            assert batch.ids.tolist() == engine.encode([text]).ids.tolist() == fresh.encode([text]).ids.tolist()


def test_other_threads_run_while_a_pattern_takes_long() -> None:
    """So a worker's heart beats, and a text that takes for ever is named."""
    engine, turns, done = HuggingFace(panicking()), 0, Event()

    def encode() -> None:
        engine.encode([SLOW])
        done.set()

    thread = Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 10


def test_other_errors_of_the_library_refuse_the_text_as_well() -> None:
    """An error of its own is as much a function of the text as a panic; no memory is not."""
    engine = HuggingFace(words())
    for error, refused in ((ValueError("no such word"), True), (MemoryError(), False)):
        library = SimpleNamespace(encode=Mock(side_effect=error))
        with patch.object(engine, "_library", library), nullcontext() if refused else pytest.raises(MemoryError):
            assert "no such word" in engine.encode(["a"]).failed[0].detail


PEAK = """
import sys
from pathlib import Path
from tokenmill.app.milling.tokenizers.hugging_face import HuggingFace
batch = HuggingFace(Path(sys.argv[1]).read_bytes()).encode([" " * int(sys.argv[2])])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(len(batch.ids), int(peak.split()[1]) >> 10)
"""
"""Prints how many tokens there are, and the most memory that the process had, in MiB."""


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_longest_text_of_a_unigram_tokenizer_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    """White space is the worst: as long as `max_text_bytes` allows by itself."""
    file = tmp_path / "tokenizer.json"
    file.write_bytes(unigram())
    command = [sys.executable, "-c", PEAK, str(file), str(MAX_TOKENIZED_BYTES)]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    tokens, peak = map(int, printed.stdout.split())
    assert tokens == MAX_TOKENIZED_BYTES
    assert peak < 900  # a mill has some 100 MiB beside it


@pytest.mark.parametrize(("longer", "together"), [(0, True), (1, False)])
def test_long_texts_are_encoded_one_after_the_other(
    longer: int,
    together: bool,  # noqa: FBT001 - pytest names it
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In any two engines of a process, also beside short ones in a batch; texts of an ordinary call go side by side."""
    monkeypatch.setattr(hugging_face, "_CALL_CHARACTERS", 10)
    meeting = Barrier(2, timeout=30 if together else 0.5)
    met = []

    def encode_texts(texts: list[str]) -> list[npt.NDArray[np.uint32]]:
        if max(map(len, texts)) >= 10:
            assert len(texts) == 1
            try:
                meeting.wait()
                met.append(True)
            except BrokenBarrierError:
                meeting.reset()
        return [np.array([len(text) % 3, 0], np.uint32) for text in texts]

    def encode(engine: HuggingFace) -> list[list[int]]:
        with patch.object(engine, "_library", SimpleNamespace(encode=encode_texts)):
            return [ids.tolist() for ids in engine.encode(["a", "b" * (10 + longer), "c"])]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(encode, [HuggingFace(words()), HuggingFace(words())]))
    assert answers == [[[1, 0], [(10 + longer) % 3, 0], [1, 0]]] * 2
    assert bool(met) == together


def test_long_text_that_fails_lets_the_next_one_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "_CALL_CHARACTERS", 10)
    engine = HuggingFace(panicking())
    assert set(engine.encode([HARMFUL, HARMFUL, "as long as it is"]).failed) == {0, 1}
    library = SimpleNamespace(encode=Mock(side_effect=MemoryError))
    with patch.object(engine, "_library", library), pytest.raises(MemoryError):
        engine.encode([HARMFUL])
    assert not engine.encode(["as long as it is"]).failed


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
ACCENTS = {"type": "StripAccents"}
CASE = {"type": "Lowercase"}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
BYTES = {"type": "ByteLevel"}
NFKC = {"type": "NFKC"}


def parts(*several: dict[str, Any]) -> bytes:
    return words(normalizer={"type": "Sequence", "normalizers": several})


@pytest.mark.parametrize(
    ("content", "text", "made"),
    [
        # nothing here makes a text much longer in tokens; as Llama 2 and Mistral have it
        (words(), "", None),
        (parts(), "", None),
        (words(normalizer=SPACES), "", None),
        (parts(PREPEND, SPACES), "", None),
        (parts(STRIP, CASE, ACCENTS, BYTES), "", None),
        (words(normalizer={"type": "NFC"}), "\u0958", "\u0915\u093c"),
        (parts(PREPEND, NFKC, SPACES), "a \ufb03", "a ffi"),
        (parts({"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}), "aa", "bbbb"),
        (parts({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}), "aa c", "b c"),
        (parts({"type": "Sequence", "normalizers": [NFKC]}), "\u2168", "IX"),
    ],
)  # fmt: skip
def test_what_may_make_a_text_longer_is_applied_in_order(content: bytes, text: str, made: str | None) -> None:
    normalize = lengthening(content)
    assert (normalize and normalize(text)) == made


def test_a_panic_is_an_error() -> None:
    normalize = lengthening(words(normalizer={"type": "Replace", "pattern": {"Regex": r"Q(a+)+\$"}, "content": ""}))
    assert normalize is not None
    with pytest.raises(PanicError, match="tokenizers panicked"):
        normalize("Q" + "a" * 40)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_no_character_becomes_longer_by_more_than_half_in_what_is_left_out() -> None:
    """Tried with each: so a text within `max_text_bytes` stays within the limit of normalized ones."""
    from tokenizers import normalizers  # noqa: PLC0415 - of this test alone

    tried = {name: getattr(normalizers, name)() for name in ("Lowercase", "Strip", "StripAccents")}
    assert tried.keys() | {"ByteLevel", "Prepend"} == HARMLESS
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for name, normalizer in tried.items():
        worst = max(len(normalizer.normalize_str(one).encode()) / len(one.encode()) for one in every)
        assert worst <= 1.5, name


def _of(post_processor: object) -> Template:
    return template_of(TokenizerFile("words", words(post_processor=post_processor)))


LEVELS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


BERT = {"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]}


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (around("a", "$A"), Template((1,), ())),
        (around("$A", "a"), Template((), (1,))),
        (around("a", "a", "$A", "a"), Template((1, 1), (1,))),
        (BERT, Template((1,), (2,))),
        (BERT | {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}, Template((1,), (2,))),
    ],
)
def test_a_template_is_found(processor: dict[str, Any], expected: Template) -> None:
    assert _of(processor) == expected
    assert _of({"type": "Sequence", "processors": [LEVELS, processor]}) == expected


def test_what_is_no_frame_or_has_no_template_is_refused() -> None:
    for single in (("$A", "a", "$A"), ("a", "$A", "$A", "a", "$A")):
        with pytest.raises(SettingsError, match=r"more than put the same tokens around .*begin_of_document"):
            _of(around(*single))
    for post_processor in (None, LEVELS):
        with pytest.raises(SettingsError, match=r"has no template: .*name the tokens instead"):
            _of(post_processor)
    with pytest.raises(SettingsError, match="raw bytes have no template"):
        template_of(RAW)
