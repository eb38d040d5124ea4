"""The tokenizers made here give the ids of the libraries that the vocabularies were made for."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from tests import vocabularies
from tests.vocabularies import files
from tests.vocabularies.conversions import read_ranks, read_tekken
from tests.vocabularies.files import data_file, library
from tests.vocabularies.texts import COLLECTION, LONG, mixtures
from tests.vocabularies.trained import TOOLS, WHOLE_WORDS

pytestmark = pytest.mark.needs("minutes")  # neither the vocabularies nor how they are read change from day to day
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's words, as its own code and Whisper's have them."""

TEXTS = (*COLLECTION, *(text[:5000] for text in LONG))

Encode = Callable[[str], list[int]]


@cache
def _tokenizer(vocabulary: Callable[[], bytes]) -> Tokenizer:
    return library(vocabulary())


def _ids(vocabulary: Callable[[], bytes], text: str) -> list[int]:
    ids: list[int] = _tokenizer(vocabulary).encode(text, add_special_tokens=False).ids
    return ids


@cache
def _whisper(name: str) -> Encode:
    ranks = read_ranks(data_file(f"whisper/assets/{name}.tiktoken"))
    return tiktoken.Encoding(name, pat_str=GPT2, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


@cache
def _tekken() -> Encode:
    ranks, pattern, first = read_tekken(data_file("mistral_common/data/tekken_240911.json"))
    encoding = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: [first + rank for rank in encoding.encode_ordinary(text)]


@cache
def _mistral() -> Encode:
    file = data_file("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
    encode: Encode = SentencePieceProcessor(model_file=str(file)).encode
    return encode


ORACLES: list[Any] = [
    pytest.param(vocabularies.gpt2, lambda: _whisper("gpt2"), id="gpt2"),
    pytest.param(vocabularies.whisper_multilingual, lambda: _whisper("multilingual"), id="whisper"),
    pytest.param(vocabularies.tekken, _tekken, id="tekken"),
    pytest.param(vocabularies.mistral_sentencepiece, _mistral, id="sentencepiece"),
]


@pytest.mark.parametrize(("vocabulary", "oracle"), ORACLES)
def test_the_ids_of_a_collection_are_those_of_the_library(
    vocabulary: Callable[[], bytes], oracle: Callable[[], Encode]
) -> None:
    encode = oracle()
    for text in TEXTS:
        assert _ids(vocabulary, text) == encode(text), text[:80]


@pytest.mark.parametrize(("vocabulary", "oracle"), ORACLES)
@given(text=mixtures())
def test_the_ids_of_any_text_are_those_of_the_library(
    vocabulary: Callable[[], bytes], oracle: Callable[[], Encode], text: str
) -> None:
    assert _ids(vocabulary, text) == oracle()(text)


def test_gpt2_is_gpt2() -> None:
    """Its published ids, which no file here says."""
    assert _ids(vocabularies.gpt2, "Hello world") == [15496, 995]
    assert _ids(vocabularies.gpt2, "Hello, I'm a language model,") == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert _tokenizer(vocabularies.gpt2).token_to_id("<|endoftext|>") == 50256


@pytest.mark.parametrize(
    ("vocabulary", "size"),
    [
        (vocabularies.gpt2, 50_257),
        (vocabularies.whisper_multilingual, 50_259),
        (vocabularies.claude, 65_000),
        (vocabularies.mistral_sentencepiece, 32_768),
        (vocabularies.tekken, 131_072),
        (vocabularies.wordpiece, 30_522),
    ],
)
def test_vocabularies_are_whole_and_added_tokens_have_the_ids_that_the_file_says(
    vocabulary: Callable[[], bytes], size: int
) -> None:
    """Ids from 0 without a hole; `tokenizers` gives an added token another id if the model does not have it."""
    tokenizer = _tokenizer(vocabulary)
    assert sorted(tokenizer.get_vocab(with_added_tokens=True).values()) == list(range(size))
    for token in json.loads(vocabulary())["added_tokens"]:
        assert tokenizer.token_to_id(token["content"]) == token["id"]


def test_what_is_trained_here_has_what_it_is_there_for() -> None:
    """Whole words that no merge makes, numbers of three digits and of one, NFC, added tokens that are matched."""
    llama, qwen = _tokenizer(vocabularies.llama3_style), _tokenizer(vocabularies.qwen25_style)
    for word in WHOLE_WORDS:
        assert len(_ids(vocabularies.llama3_style, word)) == 1
    words = [llama.decode([number]) for number in _ids(vocabularies.llama3_style, "IT'S 1234567")]
    assert words[:2] == ["IT", "'S"]
    assert max(len(word) for word in words if word.isdecimal()) <= 3
    assert len(_ids(vocabularies.qwen25_style, "1234567")) == 7
    assert _ids(vocabularies.qwen25_style, "e\u0301") == _ids(vocabularies.qwen25_style, "é")
    assert _ids(vocabularies.qwen25_style, "".join(TOOLS)) == [qwen.token_to_id(name) for name in TOOLS]
    assert qwen.token_to_id("<|im_end|>") not in _ids(vocabularies.qwen25_style, "<|im_end|>")


def test_a_missing_package_is_named_with_what_fetches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For whoever runs pytest before `make test` did its part."""
    monkeypatch.setattr(files, "FOLDER", files.FOLDER / "nowhere")
    with pytest.raises(FileNotFoundError, match="`make test` fetches"):
        data_file("whisper/assets/gpt2.tiktoken")
