"""What a tokenizer says of itself."""

import json

from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.milling.tokenizers import RAW_BYTES, TokenizerFile
from tokenmill.app.milling.tokenizers.description import Description


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


def test_raw_bytes_have_no_parts() -> None:
    """Nor a file."""
    assert Description.of(TokenizerFile(RAW_BYTES, None)) == Description("bytes", "none", "none", {}, {})
