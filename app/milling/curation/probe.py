"""Texts on which each kernel and its reference have to agree before the kernel is used."""

from typing import Final

from ..tokenizers.probe import PROBE

_PROSE: Final = (
    "The history of printing begins with the duplication of images by means of stamps in very early times. "
    "It wasn't until the 15th century that Mr. Gutenberg's press (c. 1440) made books cheap; they'd cost £20 or more. "
    'What have we learned from that? To be honest, we don\'t know... "Perhaps," she said, "it\'s the ink!" '
)
_LINES: Final = "\n".join(
    f"{number}. This is line number {number} of a text that has to be long enough, with words and a stop."
    for number in range(30)
)
_PIECES: Final = (
    "See https://example.org/a?b=c#e, www.a-b.co.uk:8080/x, me@example.com, ftp://10.0.0.1/ and 1.2.3.4 or 3.14.",
    "foo:) ) bar:-( (I'm, don't) ('a') - ('b')",
    "e.g. i.e. U.S.A. a.m. 10km 5m/s 30°C. $5 US$10 -- --- … .. ... word.Word",
    " 5+3=8 x-y well-known a/b c:d <tag> #hash @user [1] [edit] {x}",
    "Über naïve Straße; ¿qué? «oui» „nein“ 「日本」。中文,English",
)

CURATION_PROBE: Final = (
    *PROBE,
    *_PIECES,
    " ".join(_PIECES),
    _PROSE,
    _PROSE * 2,
    _PROSE * 5,
    _LINES,
    _LINES.replace(" ", "\u3000"),
    _PROSE + "\n\n" + _LINES,
    _PROSE + "\n\n" + _LINES + "\n\n" + _PROSE,
    "\n".join(_PROSE.split()) * 2,
    "\n\n".join([_PROSE] * 4),
    "\r\n".join(f"- item {number} of the list…" for number in range(60)),
    "\n".join(f"* the point {number} to be and with that..." for number in range(60)),
    _PROSE + "#" * 40,
    _PROSE + "... " * 40,
    "1 2 3 4 5 6 7 8 9 " * 12,
    "incomprehensibilities counterrevolutionaries " * 40,
    "a b c d e f g h i j " * 12,
    _LINES + "\nLorem IPSUM dolor sit amet.",
    _LINES + "\nint main() { return 0; }\nThis needs JavaScript to run, sorry.\nOur Privacy Policy is here, read it.",
    _LINES + "\nWe use coo\u212aies, and more of these words.\n[1] [2] [citation needed] Three words here. [\u0663]  ",
    "x" * 3000 + " " + _PROSE + "é" * 1500 + ".\n" + "(" * 1100 + ")" * 1100,
    "\n".join(_PROSE for _ in range(3)).replace(".", "") + "\x0b\x0c\x1c\u2028" + _LINES + "\x85\u2029",
)
"""Prose, lists, repetitions, addresses, spaCy's special cases, all scripts of `PROBE`, long chunks, line breaks of all
kinds, and a text for most reasons."""
