"""Vocabularies that no package carries: trained here, in some seconds, with the pipelines of models in use.

What is learnt from is what every machine with this Python and the test data has: Python's documentation, some of its
source, and the words in many languages that tekken has as tokens.
"""

import inspect
import json
import pydoc_data.topics
import random
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.vocabularies.conversions import pre_tokenizer, read_tekken, spelled
from tests.vocabularies.files import added_token, data_file, made_once

LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Llama 3's words: contractions in either case, numbers of three digits at most."""
QWEN25: Final = LLAMA3.replace("{1,3}", "")
"""Qwen 2.5's: each digit by itself."""
WHOLE_WORDS: Final = (" antidisestablishmentarianism", " достопримечательность", "語彙")
"""Tokens that no merges make, as Llama 3 has some: ``ignore_merges`` finds them."""
TOOLS: Final = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|repo_name|>")
"""Added tokens of Qwen 2.5 that are not special: in a text they are matched."""
_VOCABULARY: Final = 16_000
"""Enough for words of many languages, and trained in seconds."""


@made_once
def llama3_style() -> bytes:
    """Return byte-level BPE with Llama 3's pattern, ``ignore_merges``, and a token put before each text."""
    content = _train_byte_level(LLAMA3)
    model = content["model"]
    model["ignore_merges"] = True
    model["vocab"] |= {spelled(word.encode()): len(model["vocab"]) + n for n, word in enumerate(WHOLE_WORDS)}
    names = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(8))]
    _add(content, dict.fromkeys(names, True))
    content["post_processor"] = _begins_with(names[0], model["vocab"][names[0]])
    return json.dumps(content).encode()


@made_once
def gemma_style() -> bytes:
    """Return BPE with byte fallback over texts whose spaces are ``▁``, special tokens first, as Gemma's file has it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # noqa: S106
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY // 4, special_tokens=[*names, *pieces], show_progress=False, max_token_length=16
    )
    # words are not divided, so that counting pairs takes long: a part of the sample will do
    tokenizer.train_from_iterator((line for text in sample()[::16] for line in text.splitlines()), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in names]
    content["post_processor"] = _begins_with("<bos>", content["model"]["vocab"]["<bos>"])
    return json.dumps(content).encode()


@made_once
def gpt_neox_style() -> bytes:
    """Return byte-level BPE behind NFC, two special tokens first, and tokens of spaces that are found in texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|endoftext|>", "<|padding|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY // 4, initial_alphabet=alphabet, special_tokens=names, show_progress=False
    )
    tokenizer.train_from_iterator(sample()[::8], trainer)
    tokenizer.add_tokens([AddedToken(" " * length, normalized=True) for length in range(24, 1, -1)])
    return str(tokenizer.to_str()).encode()


def _begins_with(name: str, number: int) -> dict[str, Any]:
    begin, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, begin, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}},
    }


@made_once
def qwen25_style() -> bytes:
    """Return byte-level BPE behind NFC with Qwen 2.5's pattern, and added tokens of both sorts."""
    content = _train_byte_level(QWEN25)
    content["normalizer"] = {"type": "NFC"}
    special = dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], True)
    _add(content, special | dict.fromkeys(TOOLS, False))
    return json.dumps(content).encode()


@made_once
def unigram() -> bytes:
    """Return a Unigram model behind NFKC with ``▁`` for spaces, as T5's and XLM-R's are."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = ["<unk>", "<pad>", "</s>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=_VOCABULARY // 2, special_tokens=specials, unk_token=specials[0], show_progress=False
    )
    # counting substrings takes long: every eighth text will do
    tokenizer.train_from_iterator(sample()[::8], trainer)
    return tokenizer.to_str().encode()


def _train_byte_level(pattern: str) -> Any:
    tokenizer = Tokenizer.from_str(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    trained = json.loads(tokenizer.to_str()) | {"pre_tokenizer": pre_tokenizer(pattern)}
    tokenizer = Tokenizer.from_str(json.dumps(trained))
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(sample(), trainer)
    return json.loads(tokenizer.to_str())


def _add(content: Any, names: Mapping[str, bool]) -> None:
    vocabulary = content["model"]["vocab"]
    for name, special in names.items():
        content["added_tokens"].append(added_token(len(vocabulary), name, special=special))
        vocabulary[name] = len(vocabulary)


def sample() -> list[str]:
    """Return about 2 MB of text, the same on every call."""
    ranks, _, _ = read_tekken(data_file("mistral_common/data/tekken_240911.json"))
    words = [token.decode(errors="ignore") for token in ranks]
    random.Random(1).shuffle(words)
    modules = (inspect, json, random, textwrap)
    lines = textwrap.wrap("".join(words), 1000, break_on_hyphens=False)
    return [*pydoc_data.topics.topics.values(), *map(inspect.getsource, modules), *lines]
