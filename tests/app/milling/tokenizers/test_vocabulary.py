"""What a tokenizer says of itself."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.milling.tokenizers import RAW_BYTES, Engine, TokenizerFile, dtype_for, open_engine
from tokenmill.app.milling.tokenizers.vocabulary import (
    Description,
    added_ids,
    end_of,
    token_for,
    token_id_of,
)
from tokenmill.errors import SettingsError


def test_parts_have_the_names_that_the_file_gives_them(byte_level: bytes) -> None:
    """Sequences are named part by part."""
    found = Description.of(TokenizerFile("byte level", byte_level))
    assert (found.model, found.pre_tokenizer) == ("BPE", "ByteLevel")
    assert found.special == {"<|endoftext|>": 0}
    several = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    assert Description.of(TokenizerFile("words", words(normalizer=several))).normalizer == "NFC, Lowercase"


def test_added_tokens_that_are_not_special_stand_apart() -> None:
    """They are found in texts, special ones are not."""
    file = json.loads(words())
    file["added_tokens"].append(file["added_tokens"][0] | {"id": 4, "content": "<tool>", "special": False})
    found = Description.of(TokenizerFile("words", json.dumps(file).encode()))
    assert (found.special, found.added) == ({"<eos>": 3}, {"<tool>": 4})


def test_ids_of_added_tokens_are_those_that_the_library_gives() -> None:
    """Whatever the file says, in whatever order: a word's own, or the next one, holes or not."""
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False) | {"special": False}
    for word in (2, 90):
        model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": word}, "unk_token": "[UNK]"}
        given = [{"id": 70, "content": "<x>"}, {"id": 9, "content": "b"}, {"id": 5, "content": "<y>"}]
        content = words(model=model, added_tokens=[token | flags for token in given])
        library = Tokenizer.from_str(content.decode()).get_added_tokens_decoder()
        assert added_ids(json.loads(content)) == {token.content: number for number, token in library.items()}
        engine = open_engine(TokenizerFile("odd", content), "tokenizers")
        assert engine.encode(["<x>a<y>"]).ids.tolist() == [engine.token_id(name) for name in ("<x>", "a", "<y>")]


def test_raw_bytes_have_no_parts() -> None:
    """Nor a file."""
    assert Description.of(TokenizerFile(RAW_BYTES, None)) == Description("bytes", "none", "none", {}, {})


BYTES = open_engine(TokenizerFile("bytes", None))
WORDS = open_engine(TokenizerFile("words", words()))


def _word_engine(*vocabulary: str) -> Engine:
    model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(vocabulary)}, "unk_token": vocabulary[0]}
    return open_engine(TokenizerFile("words", words(model=model, added_tokens=[])))


@pytest.mark.parametrize(
    ("engine", "setting", "expected"),
    [
        (WORDS, "b", 2),
        (WORDS, 1, 1),
        (WORDS, "0", 0),
        (BYTES, 10, 10),
        (BYTES, "255", 255),
        (_word_engine("u", "x", "1"), "1", 2),
    ],
)
def test_the_token_is_found(engine: Engine, setting: str | int, expected: int) -> None:
    """By name or by id; a token's name goes before digits."""
    assert token_id_of(engine, "padding", setting) == expected


@pytest.mark.parametrize(
    ("engine", "setting"),
    [(WORDS, "<pad>"), (WORDS, 4), (WORDS, -1), (WORDS, "4"), (WORDS, True), (BYTES, 256), (BYTES, "a")],
)
def test_what_is_no_token_is_refused(engine: Engine, setting: str | int) -> None:
    """The message names the setting."""
    with pytest.raises(SettingsError, match=rf"^padding = {setting!r} is no token .* an id from 0 to \d+$"):
        token_id_of(engine, "padding", setting)


EOS_AND_TAG = ("u", "</s>", "<eos>", "<bos>", "<pad>")
AFTER: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<bos>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<bos>": {"id": "<bos>", "ids": [3], "tokens": ["<bos>"]}},
}


def _file(*special: str, vocabulary: Sequence[str] = EOS_AND_TAG, beside: Any = None, **parts: Any) -> TokenizerFile:
    """Return a tokenizer with this vocabulary, some of which is special."""
    model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(vocabulary)}, "unk_token": vocabulary[0]}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        plain | {"id": number, "content": name, "special": name in special}
        for number, name in enumerate(vocabulary)
        if name.startswith(("<", "["))
    ]
    return TokenizerFile("words", words(model=model, added_tokens=added, **parts), beside or {})


@pytest.mark.parametrize(
    ("file", "expected", "why"),
    [
        (TokenizerFile("bytes", None), 0, "zero byte"),
        (TokenizerFile("words", words()), 3, "usual name"),
        (_file("<eos>", "<bos>"), 2, "usual name"),
        (_file("[SEP]", vocabulary=("u", "[SEP]", "[CLS]")), 1, "usual name"),
        (_file("<eos>", post_processor=AFTER), 3, r"tokenizer.json \(post_processor\)"),
        (_file("<eos>", beside={"tokenizer_config.json": {"eos_token": {"content": "<bos>"}}}), 3, "tokenizer_config"),
        (_file("<eos>", beside={"special_tokens_map.json": {"eos_token": "</s>"}}), 1, "special_tokens_map"),
        (_file("<eos>", beside={"generation_config.json": {"eos_token_id": 3}}), 3, "generation_config"),
        (
            _file(
                beside={
                    "tokenizer_config.json": {"eos_token": "<eos>"},
                    "generation_config.json": {"eos_token_id": [3, 2]},
                }
            ),
            2,
            "tokenizer_config.json, generation_config.json",
        ),
    ],
)
def test_the_end_is_what_the_files_say_or_a_special_token(file: TokenizerFile, expected: int, why: str) -> None:
    """A word of a usual name is no end, as `</s>` is an HTML tag for Gemma; and it is said where the end was found."""
    found = end_of(file, open_engine(file))
    assert found.id == expected
    assert re.search(why, found.why)


@pytest.mark.parametrize(
    ("file", "choice"),
    [
        (_file("</s>", "<eos>"), r"</s> \(id 1\), <eos> \(id 2\)"),
        (
            _file("<eos>", beside={"generation_config.json": {"eos_token_id": [3, 2]}}),
            r"<eos> \(id 2\), <bos> \(id 3\)",
        ),
        (
            _file("<eos>", post_processor=AFTER, beside={"tokenizer_config.json": {"eos_token": "<eos>"}}),
            r"<eos> \(id 2\), <bos> \(id 3\)",
        ),
    ],
)
def test_several_ends_are_refused_with_the_choice(file: TokenizerFile, choice: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(SettingsError, match=rf"{choice}\. Set end_of_document"):
        end_of(file, open_engine(file))


CONFIG, MAP, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"


@pytest.mark.parametrize(("role", "name"), [("eos", CONFIG), ("eos", MAP), ("bos", CONFIG), ("pad", MAP)])
@pytest.mark.parametrize("value", ["<gone>", "", 2, 2.0, True, ["<eos>"], {"content": "<gone>"}, {"content": 2}, {}])
def test_a_file_that_names_no_token_is_named_with_the_choice(name: str, role: Any, value: Any) -> None:
    """A usual name would be a guess against what the file says."""
    file = _file("<eos>", "<bos>", "<pad>", beside={name: {f"{role}_token": value}})
    said = rf"{role}_token of {re.escape(name)} is {re.escape(json.dumps(value))}, the name of no token\."
    with pytest.raises(SettingsError, match=rf"{said}.* Correct the file, or set \w+ .*to the name or id"):
        token_for(role, file, open_engine(file))


@pytest.mark.parametrize("value", [5, -1, "2", "<eos>", 2.0, True, [2, 5], [[2]], {"id": 2}, {}])
def test_a_file_that_gives_no_id_is_named_with_the_choice(value: Any) -> None:
    """As an id of another tokenizer's vocabulary; where one of several is right, the others are wrong all the same."""
    file = _file("<eos>", beside={GENERATION: {"eos_token_id": value}})
    said = (
        rf"eos_token_id of {GENERATION} is {re.escape(json.dumps(value))}, no id from 0 to 4\. It has <eos> \(id 2\)\."
    )
    with pytest.raises(SettingsError, match=rf"{said} Correct the file, or set end_of_document"):
        end_of(file, open_engine(file))


@pytest.mark.parametrize("name", [CONFIG, MAP, GENERATION])
def test_a_file_that_is_no_object_is_named(name: str) -> None:
    """It says nothing, and should."""
    file = _file("<eos>", beside={name: ["<eos>"]})
    with pytest.raises(SettingsError, match=rf"{re.escape(name)} is no JSON object\. It has <eos> \(id 2\)"):
        end_of(file, open_engine(file))


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({CONFIG: {"eos_token": "<gone>"}, GENERATION: {"eos_token_id": 2}}, 'eos_token of .* is "<gone>"'),
        ({CONFIG: {"eos_token": "<eos>"}, GENERATION: {"eos_token_id": [2, 99]}}, r"eos_token_id of .* is \[2, 99\]"),
        ({CONFIG: {"eos_token": "<eos>"}, MAP: []}, f"{MAP} is no JSON object"),
    ],
)
def test_what_is_wrong_in_one_file_is_said_where_another_names_the_end(beside: Any, said: str) -> None:
    """The end is certain, so work goes on."""
    file = _file("<eos>", "</s>", beside=beside)
    found = end_of(file, open_engine(file))
    assert found.id == 2
    assert re.search(rf"^named by .*\.json \(passed over: {said}", found.why)


def test_a_file_that_says_nothing_is_no_fault() -> None:
    """Most have null, or no such key."""
    file = _file("<eos>", beside={CONFIG: {"eos_token": None}, MAP: {}, GENERATION: {"eos_token_id": None}})
    assert end_of(file, open_engine(file)) == (2, "the special token with a usual name")


def test_a_vocabulary_without_a_usual_special_token_needs_the_setting() -> None:
    """Nothing is guessed that may be a word."""
    file = _file()
    with pytest.raises(SettingsError, match="set end_of_document"):
        end_of(file, open_engine(file))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (TokenizerFile("bytes", None), 0),
        (TokenizerFile("words", words()), None),
        (_file("<eos>"), None),
        (_file("<pad>"), 4),
        (_file("<pad>", beside={"special_tokens_map.json": {"pad_token": "<eos>"}}), 2),
    ],
)
def test_padding_is_found_in_the_same_way(file: TokenizerFile, expected: int | None) -> None:
    """What a file names; else a special token of a usual name, if there is one."""
    found = token_for("pad", file, open_engine(file))
    assert (found.id if found else None) == expected


def test_a_padding_of_which_name_and_id_differ_is_not_taken() -> None:
    """As `tokenizers` writes it where nobody said which token it is: id 0, whatever that token is."""
    default = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    padding = default | {"pad_id": 0, "pad_token": "[PAD]"}
    file = _file("<eos>", "<pad>", padding=padding)
    with pytest.raises(SettingsError, match=r"is \[PAD\], id 0, which is no such token.*<pad>.*set padding"):
        token_for("pad", file, open_engine(file))
    file = _file("<eos>", "<pad>", padding=padding, beside={"tokenizer_config.json": {"pad_token": "<pad>"}})
    found = token_for("pad", file, open_engine(file))
    assert found is not None
    assert found.id == 4


BEFORE = AFTER | {"single": AFTER["single"][::-1]}


@pytest.mark.parametrize(
    ("file", "expected", "why"),
    [
        (_file("<bos>", "<eos>"), 3, "usual name"),
        (_file("<eos>"), None, ""),
        (_file("<bos>", post_processor=BEFORE), 3, r"tokenizer.json \(post_processor\)"),
        (_file("<bos>", beside={"tokenizer_config.json": {"bos_token": "<eos>"}}), 2, "tokenizer_config.json"),
        (TokenizerFile("bytes", None), None, ""),
    ],
)
def test_the_begin_is_found_in_the_same_way(file: TokenizerFile, expected: int | None, why: str) -> None:
    """A word of a usual name begins nothing."""
    found = token_for("bos", file, open_engine(file))
    assert (found.id if found else None) == expected
    assert re.search(why, found.why if found else "")


def test_several_begins_and_paddings_are_refused_with_the_choice() -> None:
    """As several ends are."""
    file = _file("<s>", "<bos>", "<pad>", "[PAD]", vocabulary=("u", "<s>", "<bos>", "<pad>", "[PAD]"))
    with pytest.raises(SettingsError, match=r"<s> \(id 1\), <bos> \(id 2\)\. Set begin_of_document"):
        token_for("bos", file, open_engine(file))
    with pytest.raises(SettingsError, match=r"<pad> \(id 3\), \[PAD\] \(id 4\)\. Set padding"):
        token_for("pad", file, open_engine(file))


def test_what_is_unknown_is_what_the_model_says() -> None:
    """And raw bytes know all."""
    file = _file("<eos>")
    found = token_for("unk", file, open_engine(file))
    assert found is not None
    assert (found.id, found.why) == (0, "named by tokenizer.json (model)")
    file = TokenizerFile("bytes", None)
    assert token_for("unk", file, open_engine(file)) is None


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_dtype_is_the_smallest_that_holds_every_id(size: int, dtype: str) -> None:
    """The largest id is the size less one."""
    assert dtype_for(size) == np.dtype(dtype)
    assert size - 1 <= np.iinfo(dtype_for(size)).max
