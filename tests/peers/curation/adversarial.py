# ruff: noqa: RUF001 - ambiguous characters are what rules are tested with
"""Texts that rules were not made for, each by a name."""

import random
from collections.abc import Iterator
from typing import Final

_ALPHABETS: Final = {
    "brackets": "()[]{}<>",
    "emoticons": [":)", ":-)", "foo:)", ")", "8)", "(:", ":))", "o.O", "'", "and/or", "a.m.", " "],
    "punctuation": "!?.,:;…—–'\"’”“#*_-=/~ ",
    "dots": [".", "..", "...", "….", "a.", "A.B.", "1.", " ", "\n"],
    "addresses": ["http://", "a.b", "@", ":", "//", "www.", ".com", "/x", "?y=1", ":8080", "x-", "[1]", " "],
    "numbers": ["1", "12.5", "1,000", "$", "€", "km", "°C.", "+", "-", "%", "1st", " "],
    "contractions": ["can't", "I'm", "'s", "’s", "'em", "o'clock", "won't", "d'", "'", " "],
    "white space": [" ", "  ", "\t", "\n", "\r\n", *"\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000a"],
    "controls": ["\0", "\x01", "\x7f", "\x80", "\x9f", "\ufeff", "\u200b", "\u200d", "\ufffd", "a", " "],
    "scripts": ["語", "か", "한", "ا", "ש", "क", "क्ष", "ไ", "ß", "İ", "ı", "ﬃ", "。", "؟", "।", "！", " ", "\n"],
    "combining": ["a", "\u0301", "\u0323", "\u20dd", "\u3099", " "],
    "emoji": ["🙂", "👨‍👩‍👧", "❤️", "🇩🇪", "¯\\_(ツ)_/¯", "(╯°□°）╯︵┻━┻", "a", " "],
    "lines": [
        *("- a\n", "• b\n", "…\n", "...\n", "Text here.\n", "\n", "Word word word.\n", "{", "lorem ipsum ", "[edit]")
    ],
    "C4": [
        *("Uses cookies. ", "JavaScript on! ", "One two three. ", "Is it? ", '"Yes." '),
        *("[12]", "a b...", "\n", "\r", "x"),
    ],
    "names of attributes": ["IS_ALPHA", "ORTH", "LOWER", "IS_STOP", "\\n", "\\t", "<space>", " ", "\n"],
}


def texts(rounds: int, length: int) -> Iterator[tuple[str, str]]:
    yield from _fixed()
    for kind, alphabet in _ALPHABETS.items():
        chooser = random.Random(kind)
        for number in range(rounds):
            size = chooser.randrange(1, length)
            few = chooser.sample(list(alphabet), chooser.randint(1, min(6, len(alphabet))))
            yield f"{kind} {number}", "".join(chooser.choices(few, k=size))
    for number in range(rounds):
        chooser = random.Random(number)
        every = [part for alphabet in _ALPHABETS.values() for part in alphabet]
        yield f"all {number}", "".join(chooser.choices(every, k=chooser.randrange(1, length)))


def _fixed() -> Iterator[tuple[str, str]]:
    yield from {"empty": "", "space": " ", "line feed": "\n", "NUL": "\0", "letter": "a", "stop": "."}.items()
    yield "equal words", "word " * 20_000
    yield "equal lines", "The same line, again and again.\n" * 3_000
    yield "equal paragraphs", "One paragraph of the text.\n\n" * 2_000
    yield "empty lines", "\n" * 20_000
    yield "letters as words", " ".join("abcdefghij" * 2_000)
    yield "one word of 1,024 characters", "x" * 1024 + " and the rest of it."
    yield "a line of words", ("The quick brown fox jumps over the lazy dog, and that is all. " * 500)
    yield "no spaces", "語" * 1_000
    yield "combining marks", "\u0301" * 5_000
    yield "right to left", "\u202eabc \u202d" + "שלום עולם. " * 500
    yield "numbers", " ".join(map(str, range(5_000)))
    yield "100,001 words", "the be " * 50_000 + "to"
