"""A tokenizer of which one pattern backtracks catastrophically: the library panics on some texts."""

from functools import cache
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

HARMFUL: Final = "Q" + "a" * 40
"""The library gives up the match after some 10,000,000 steps back, and panics."""
SLOW: Final = ("Q" + "a" * 19 + " ") * 20
"""Every match takes some hundred thousand steps back, and ends."""
END: Final = "<|endoftext|>"


@cache
def panicking(pattern: str = r"Q(a+)+\$") -> bytes:
    """Return the ``tokenizer.json`` of a byte-level BPE without merges that cuts texts at ``pattern`` first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: at for at, character in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    content: str = tokenizer.to_str()
    return content.encode()
