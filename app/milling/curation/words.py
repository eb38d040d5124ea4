"""Words and sentences of a text as datatrove has them: by spaCy's blank English pipeline.

datatrove 0.10.1 (``utils/text.py``, whose punctuation this is, and ``utils/word_tokenizers.py``) splits texts by
``spacy.blank("en")`` with the component ``sentencizer``, which has rules and no model. spaCy splits at white space
first and then each chunk, the characters between, into words. It takes prefixes and suffixes ("(", ")", "'s") off one
by one and searches the rest of the chunk after each, so a chunk of n brackets takes n² steps. Two things bound that:

- The searches look at the ends of a chunk alone, with the same result.
- A chunk of more than `CHUNK_CHARACTERS` is cut into pieces of that length, each of which is tokenized as if it were a
  text by itself. Words that cross a cut, and rules that look across one, are the only difference from datatrove.

At last spaCy joins special cases that came apart ("foo:)" is "foo", ":)"), over all words of a text: whether it does
may depend on the neighbouring chunks, as in "foo:) )", where the longer ":))" is found first and not used.

spaCy cannot hold the word IS_ALPHA: once it was met, most later texts with it raise an error. datatrove then reads the
text without any IS_ALPHA; here that is so from the first time on.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from threading import Lock
from typing import Any, Final

TERMINAL: Final = frozenset(
    "!.?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a"
    "\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u17d6\u17d9\u17da\u1803\u1809\u1944\u1945"
    "\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d"
    "\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce"
    "\ua8cf\ua92f\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56\ufe57\uff01\uff0e\uff1f"
    "\uff61\U00010a56\U00010a57\U00010f55\U00010f56\U00010f57\U00010f58\U00010f59\U00010f86\U00010f87"
    "\U00010f88\U00010f89\U00011047\U00011048\U000110be\U000110bf\U000110c0\U000110c1\U00011141\U00011142"
    "\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    "\U000112a9\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9\U000115ca\U000115cb\U000115cc\U000115cd"
    "\U000115ce\U000115cf\U000115d0\U000115d1\U000115d2\U000115d3\U000115d4\U000115d5\U000115d6\U000115d7"
    "\U00011641\U00011642\U0001173c\U0001173d\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    "\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5"
    "\U00016b37\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88"
)
"""What ends a sentence in any script: ``TERMINAL_PUNCTUATION``."""

_MARKS: Final = (
    "\"#$%&'()*+,-/:;<=>@[\\]^_`{|}~\xab\xb4\xbb\u2013\u2014\u2019\u201c\u201d\u201e\u2026\u2236\u2501"
    "\u25ba\u3001\u3008\u3009\u300a\u300b\u300c\u300d\u3010\u3011\uff05\uff08\uff09\uff0c\uff11\uff1a"
    "\uff1b\uff5e"
)
_CONTROLS: Final = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
"""All control characters but tab and line feed."""

SYMBOLS: Final = TERMINAL.union(_MARKS, *(map(chr, controls) for controls in _CONTROLS))
"""Characters of which a word may consist that does not count as one: ``PUNCTUATION_SET``."""


CHUNK_CHARACTERS: Final = 1024
"""Longest chunk that spaCy gets whole. Few real texts have longer ones, and up to here no chunk takes more than ten
times the time per character of English text; beyond, expressions for addresses ("a:@a:@…") take a square of time."""
SUFFIX_CHARACTERS: Final = 32
"""A suffix is searched in as many characters; spaCy's longest, dots aside, are units of measure behind a digit."""
_BROKEN, _LIKE_BROKEN = "IS_ALPHA", "IS_ALPHB"
"""The second is as long as the first, and cut in the same way."""
REMEMBERED_CHARACTERS: Final = 1 << 16
"""Words of the last texts up to this length are kept, some megabytes: the steps of a recipe ask one by one."""
_LONG_CHUNK: Final = re.compile(rf"\S{{{CHUNK_CHARACTERS + 1},}}")


def import_spacy() -> Any:
    """Return spaCy, imported without torch, unless this process has imported that before.

    thinc, which spaCy's models compute with, imports torch wherever it is installed: 500 MB of memory and two seconds.
    There is no model here. torch can be imported afterwards; it is hidden only while this runs. Raises
    ModuleNotFoundError where spaCy is not installed; it comes with the extra ``curation``.
    """
    hides = "torch" not in sys.modules
    if hides:
        sys.modules["torch"] = None  # type: ignore[assignment] # so Python knows what cannot be imported
    try:
        import spacy  # noqa: PLC0415 - takes a second: only recipes with such a filter need it
    finally:
        if hides:
            del sys.modules["torch"]
    return spacy


class EnglishText:
    """spaCy's pipeline; safe to use from several threads, one at a time."""

    def __init__(self) -> None:
        """Open it. Raises ModuleNotFoundError where spaCy is missing; it comes with the extra ``curation``."""
        spacy = import_spacy()
        self.version: str = spacy.about.__version__
        self._pipeline: Any = spacy.blank("en")
        self._sentencizer: Callable[[Any], Any] = self._pipeline.add_pipe("sentencizer")
        tokenizer: Any = self._pipeline.tokenizer
        tokenizer.prefix_search = tokenizer.prefix_search.__self__.match  # all prefixes begin with ^
        tokenizer.suffix_search = suffix_search(tokenizer.suffix_search.__self__)
        self._lock = Lock()
        self._remembered = lru_cache(maxsize=2)(self._words)

    def describe(self) -> dict[str, Any]:
        """Return, as JSON types, all that decides words and sentences."""
        return {"tokenizer": f"spacy {self.version} en", "chunk_characters": CHUNK_CHARACTERS}

    def words(self, text: str) -> tuple[str, ...]:
        """Return the words in order: spaCy's tokens without white space around them, and none that is empty."""
        return self._remembered(text) if len(text) <= REMEMBERED_CHARACTERS else self._words(text)

    def sentences(self, text: str) -> list[str]:
        """Return consecutive sentences that make up the text, white space included; a text without words is one."""
        if not text:
            return [text]
        with self._lock, self._pipeline.memory_zone():
            tokens, _ = self._read(text)
            ends = [sentence.end_char for sentence in self._sentencizer(tokens).sents][:-1]
        return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]

    def _words(self, text: str) -> tuple[str, ...]:
        with self._lock, self._pipeline.memory_zone():  # what spaCy remembers of a text is freed with the zone
            tokens, text = self._read(text)
            words = [text[word.idx : word.idx + len(word)].strip() for word in tokens]
        return tuple(filter(None, words))

    def _read(self, text: str) -> tuple[Any, str]:
        if _BROKEN not in text:
            return self._tokens(text), text
        tokens = self._tokens(text.replace(_BROKEN, _LIKE_BROKEN))
        if any(len(word) == len(_BROKEN) and text.startswith(_BROKEN, word.idx) for word in tokens):
            text = text.replace(_BROKEN, "")
            tokens = self._tokens(text.replace(_BROKEN, _LIKE_BROKEN))
        return tokens, text

    def _tokens(self, text: str) -> Any:
        if not any(len(chunk) > CHUNK_CHARACTERS for chunk in text.split()):
            return self._pipeline.tokenizer(text)
        from spacy.tokens import Doc  # noqa: PLC0415 - as above

        words = [word for piece in pieces(text) for word in self._pipeline.tokenizer(piece)]
        spaces = [bool(word.whitespace_) for word in words]
        return Doc(self._pipeline.vocab, words=[word.text for word in words], spaces=spaces)


@cache
def english() -> EnglishText:
    """Return the one pipeline of this process; opened by the first call, see `EnglishText`."""
    return EnglishText()


def pieces(text: str) -> Iterator[str]:
    """Yield parts that make up the text, cut at every `CHUNK_CHARACTERS` within chunks that are longer."""
    begin = 0
    for chunk in _LONG_CHUNK.finditer(text):
        for cut in range(chunk.start() + CHUNK_CHARACTERS, chunk.end(), CHUNK_CHARACTERS):
            yield text[begin:cut]
            begin = cut
    yield text[begin:]


def suffix_search(expression: re.Pattern[str]) -> Callable[[str], re.Match[str] | None]:
    """Return ``expression.search``, for expressions that match at the end of a text alone, without a search of it all.

    Equal for what matches at most `SUFFIX_CHARACTERS`, and for repetitions of one character, of any length.
    """

    def search(text: str) -> re.Match[str] | None:
        begin = len(text) - SUFFIX_CHARACTERS
        if begin <= 0:
            return expression.search(text)
        found = expression.search(text, begin)  # looks behind its beginning where an expression does
        return expression.search(text) if found is not None and found.start() == begin else found

    return search
