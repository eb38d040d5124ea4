"""One document a row, and chunks of one document: by hand, beside the tokenizer library, and in the middle of one."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from tests.mills import RECIPE, Source, cut_blocks, flush, make_source, mill_as_reference, text
from tests.strategies import packings, record_lists, sources_in
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.milling.recipe_stages import complete, reopen_stages
from tokenmill.app.milling.tokenizers import TokenizerFile
from tokenmill.documents import Record
from tokenmill.errors import SettingsError
from tokenmill.packings import SEPARATE
from tokenmill.recipe import Recipe
from tokenmill.wire.pieces import decode_entry

separate_sources = sources_in(packings.filter(lambda packing: packing["packing"] in SEPARATE))


def rows(block_tokens: int, **parameters: str) -> Recipe:
    """Return a recipe of raw bytes between the ids 1 and 2, padded with 3."""
    frame: dict[str, Any] = {"begin_of_document": (1,), "end_of_document": 2, "padding": 3}
    return replace(RECIPE, packing="rows", packing_parameters=parameters, block_tokens=block_tokens, **frame)


def chunks(chunk_tokens: int, **parameters: Any) -> Recipe:
    """Return a recipe of raw bytes with a 0 at the end of each document, padded with 3."""
    parameters |= {"chunk_tokens": chunk_tokens}
    sizes: dict[str, Any] = {"block_tokens": chunk_tokens + 1, "segment_tokens": 1, "padding": 3}
    return replace(RECIPE, packing="chunks", packing_parameters=parameters, **sizes)


def milled(recipe: Recipe, texts: list[str]) -> tuple[list[bytes], list[list[tuple[int, int, int]]], dict[str, Any]]:
    """Return tokens and pieces (start, offset, position) of each block, and the totals; all as the reference says."""
    mill, (fed,) = mill_as_reference(make_source(recipe), [text(number, value) for number, value in enumerate(texts)])
    chain = mill.chains["train"]
    assert chain.open_tokens == 0
    blocks = cut_blocks(fed.messages["train"], recipe)
    pieces = [[(p.start, p.offset, p.position) for p in decode_entry(entry)] for _, _, entry in blocks]
    return [tokens for _, tokens, _ in blocks], pieces, chain.totals.to_dict()


TEXTS = ["ab", "abcdefgh", "abcd"]
PAD = -1


@pytest.mark.parametrize(
    ("parameters", "expected", "pieces", "filtered"),
    [
        ({}, [b"\1ab\2\3\3", b"\1abcd\2", b"\1abcd\2"], [[(0, 0, 0), (4, 0, PAD)], [(0, 1, 0)], [(0, 2, 0)]], {}),
        (
            {"long": "split"},
            [b"\1ab\2\3\3", b"\1abcd\2", b"\1efgh\2", b"\1abcd\2"],
            [[(0, 0, 0), (4, 0, PAD)], [(0, 1, 0)], [(0, 1, 4)], [(0, 2, 0)]],
            {},
        ),
        ({"long": "drop"}, [b"\1ab\2\3\3", b"\1abcd\2"], [[(0, 0, 0), (4, 0, PAD)], [(0, 2, 0)]], {"too_long": 1}),
        ({"short": "drop"}, [b"\1abcd\2", b"\1abcd\2"], [[(0, 1, 0)], [(0, 2, 0)]], {"too_short": 1}),
        ({"long": "drop", "short": "drop"}, [b"\1abcd\2"], [[(0, 2, 0)]], {"too_long": 1, "too_short": 1}),
    ],
)
def test_rows_by_hand(parameters: dict[str, str], expected: Any, pieces: Any, filtered: dict[str, int]) -> None:
    """The frame stays around what is left of a text; padding is a piece of the document's own offset."""
    blocks, found, totals = milled(rows(6, **parameters), TEXTS)
    assert (blocks, found, totals["filtered"]) == (expected, pieces, filtered)
    padding = sum(block.count(3) for block in blocks)
    assert totals["tokens"] == sum(map(len, blocks)) - padding
    assert totals.get("packing", {}).get("padding", 0) == padding


def test_totals_say_what_is_left_out_and_divided() -> None:
    assert milled(rows(6), TEXTS)[2]["packing"] == {"padding": 2, "shortened": 1, "left_out": 4}
    assert milled(rows(6, long="split"), ["abcdefghi"])[2]["packing"] == {"padding": 3, "cut": 1}
    left = milled(rows(6, long="split", short="drop"), ["abcdefghi"])
    assert (len(left[0]), left[2]["packing"]) == (2, {"cut": 1, "shortened": 1, "left_out": 1})
    # two ids of nine are behind the only chunk's, the label counted
    assert milled(chunks(6), ["abcdefgh"])[2]["packing"] == {"shortened": 1, "left_out": 2}
    assert milled(chunks(4), ["abcdefgh"])[2]["packing"] == {"cut": 1}
    assert milled(chunks(4, rest="pad"), ["abcdefg"])[2]["packing"] == {"cut": 1, "padding": 1}


@pytest.mark.parametrize(
    ("parameters", "expected", "pieces", "packing", "filtered"),
    [
        ({}, [b"abcde", b"efgh\0"], [[(0, 0, 0)], [(0, 0, 4)]], {"cut": 1}, {"too_short": 1}),
        (
            {"rest": "pad"},
            [b"abcde", b"efgh\0", b"abc\0\3"],
            [[(0, 0, 0)], [(0, 0, 4)], [(0, 1, 0), (4, 1, PAD)]],
            {"cut": 1, "padding": 1},
            {},
        ),
    ],
)
def test_chunks_by_hand(parameters: Any, expected: Any, pieces: Any, packing: Any, filtered: Any) -> None:
    """The last id of a chunk is the first of the next one of its document: its label, and then its input."""
    blocks, found, totals = milled(chunks(4, **parameters), ["abcdefgh", "abc"])
    assert (blocks, found) == (expected, pieces)
    assert (totals["packing"], totals["filtered"]) == (packing, filtered)


@given(separate_sources, record_lists())
def test_a_flush_is_counted_and_fills_nothing(source: Source, records: list[Record]) -> None:
    """No block is ever open, so a flush after each record changes the totals' flushes alone."""
    recipe = source.recipes[0]
    spread = [record._replace(offset=2 * number) for number, record in enumerate(records)]
    flushed = [one for record in spread for one in (record, flush(record.offset + 1))]
    plain, also = source.blocks(recipe, spread), source.blocks(recipe, flushed)
    assert [(b.tokens, b.entry) for b in plain] == [(b.tokens, b.entry) for b in also]


def test_what_is_dropped_is_listed_with_what_else_is_rejected() -> None:
    source = make_source(rows(6, long="drop", short="drop"))
    mill = PartitionMill(source.stages, [source.chain(source.recipes[0])], list_rejected=True)
    found = mill.feed([text(0, "ab"), text(1, "abcd"), text(2, " "), text(3, "abcdefgh")]).rejected
    assert [(one.record.offset, one.reason) for one in found] == [(0, "too_short"), (2, "empty"), (3, "too_long")]
    assert all(one.detail for one in (found[0], found[2]))
    assert mill.chains["train"].totals.kept == 1


CORPUS = ["the quick brown fox jumps over the lazy dog", "a b c d e f g", "pack my box with five dozen jugs"] * 4


def bert_kind() -> Tokenizer:
    """Return WordPiece with BERT's template and its token for padding."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=names))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def gpt2_kind() -> Tokenizer:
    """Return byte-level BPE without a template, whose only special token ends texts, and pads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS: dict[str, tuple[Tokenizer, dict[str, Any], int]] = {
    "bert": (bert_kind(), {"end_of_document": None, "template": "tokenizer"}, 0),
    "gpt2": (gpt2_kind(), {"end_of_document": "none", "padding": "<|endoftext|>"}, 0),
}
"""Tokenizer, settings, and the id for padding."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
@given(
    texts=st.lists(st.lists(st.sampled_from(["fox", "dozen ", " é", "a", "x🙂", ". "]), min_size=1).map("".join)),
    row=st.integers(3, 16),
)
def test_rows_are_what_the_library_truncates_and_pads(kind: str, engine: Any, texts: list[str], row: int) -> None:
    """``truncation=True, padding="max_length"``: id for id, and the mask is where no piece says padding."""
    tokenizer, settings, pad = KINDS[kind]
    draft = replace(RECIPE, decode="text", packing="rows", block_tokens=row, steps=())
    recipe, stages = complete(draft, TokenizerFile(kind, tokenizer.to_str().encode()), engine=engine, **settings)
    assert recipe.padding_id == pad
    tokenizer.enable_truncation(row)
    tokenizer.enable_padding(length=row, pad_id=pad)
    texts = [value for value in texts if value.strip()]
    wanted = [tokenizer.encode(value) for value in texts]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    source = Source(stages, (recipe,))
    messages = source.mill().feed([text(number, value) for number, value in enumerate(texts)]).messages["train"]
    blocks = cut_blocks(messages, recipe)
    assert [np.frombuffer(ids, recipe.token_dtype).tolist() for _, ids, _ in blocks] == [one.ids for one in wanted]
    assert [mask_of(entry, row) for _, _, entry in blocks] == [one.attention_mask for one in wanted]


def mask_of(entry: bytes, row: int) -> list[int]:
    pieces = decode_entry(entry)
    starts = [*(piece.start for piece in pieces), row]
    sizes = [stop - start for start, stop in pairwise(starts)]
    return [int(p.position >= 0) for p, size in zip(pieces, sizes, strict=True) for _ in range(size)]


def test_rows_without_room_for_a_text_are_refused() -> None:
    draft, tokenizer = replace(RECIPE, packing="rows", block_tokens=2), KINDS["bert"][0].to_str().encode()
    with pytest.raises(SettingsError, match=r"^sequence_length = 2 leaves no room .* 3 or more"):
        complete(draft, TokenizerFile("bert", tokenizer), None, template="tokenizer")


@pytest.mark.parametrize(
    ("settings", "padding", "recorded"),
    [
        ({"end_of_document": None, "template": "tokenizer"}, 0, 0),
        ({"end_of_document": None, "padding": "[SEP]"}, 3, None),
        ({"end_of_document": "none"}, 0, 0),
    ],
)
@pytest.mark.parametrize("allow_flush", [True, False])
def test_rows_are_padded_with_the_tokenizers_own_and_open_again(
    settings: dict[str, Any], padding: int, recorded: int | None, *, allow_flush: bool
) -> None:
    """Where nothing else is set, whether or not flushes are allowed; a settled recipe keeps the id that it has."""
    tokenizer = TokenizerFile("bert", KINDS["bert"][0].to_str().encode())
    draft = replace(RECIPE, packing="rows", block_tokens=8, allow_flush=allow_flush)
    recipe, _ = complete(draft, tokenizer, **settings)
    assert (recipe.padding_id, recipe.padding) == (padding, recorded)
    reopen_stages(recipe, tokenizer)
    dropping, _ = complete(replace(draft, packing_parameters={"short": "drop"}), tokenizer, **settings)
    reopen_stages(dropping, tokenizer)
