"""Hypothesis strategies for texts that rules of words, sentences and lines look at."""

from typing import Final

from hypothesis import strategies as st

_WITHOUT_SPACES: Final = """
    the be to of and that have with word Word US a I x can't I'm it's JavaScript cookies é naïve Straße
    foo:) ) :) :-( )) ' ('a') 8) a.m. 10a.m. e.g. U.S. Mr. o'clock 'em IS_ALPHA
    http://a.b/c www.example.com a@b.co 1.2.3.4 3.14 x.y.z a.b:80/x ftp://é.fr 10km 5m/s
    $5 US$10 30°C. AB. 1+1 a-b a--b a—b a,b a.B x=y a/b … .. ... ......
    # ## { [1] [edit] [] • - ! ? " end. end! end." ¡ «x»
    語 日本語。 한국 हिन्दी। 😀 ♥
    שלום
    العربية؟
"""
CHUNKS: Final = (
    *_WITHOUT_SPACES.split(),
    *("- ", "• item", "- item", "[citation needed]", "lorem ipsum", "privacy policy", "use cookies", "terms of use"),
    *("coo\u212aie policy", "\u0130stanbul", "[\u0663]", "\u0301", "e\u0301\u0323", "\0", "\ufffd"),
    *("x" * 30, "9" * 12, "(" * 40, "y" * 1023, "z" * 1025, "(" * 1030, "ab" * 1100),
)
"""What stands between white space, with what spaCy's rules and the filters' look for."""
WHITE: Final = (
    *"    \n\n\t\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000",
    *("\n\n", "\n\n\n", "  ", "\r\n", " \n ", "", ""),
)

pieces = st.one_of(st.sampled_from(CHUNKS), st.sampled_from(CHUNKS), st.text(max_size=6))


@st.composite
def curated_texts(draw: st.DrawFn) -> str:
    """Return a text of odd pieces, of which some come again and again."""
    lines = [
        "".join(draw(pieces) + draw(st.sampled_from(WHITE)) for _ in range(draw(st.integers(0, 8))))
        for _ in range(draw(st.integers(1, 4)))
    ]
    ends = [draw(st.sampled_from(WHITE)) for _ in lines]
    return "".join((line + end) * draw(st.integers(1, 6)) for line, end in zip(lines, ends, strict=True))


_PARTS: Final = (
    *("the", "of", "and", "word", "Ab", "a.b", "can't", "it's", "I'm", "foo:)", ":)", ")", ":))", "8)", "o.O", "'"),
    *("(", "…", "...", ".", "..", "!", "?", '"', "#", "-", "•", "{", "[1]", "[edit]", "$", "12.5", "5km", "1,000"),
    *("http://a.b/c", "a@b.co", "x:y", "a.m.", "and/or", "語", "か", "é", "🙂", "\u0301", "\0", "IS_ALPHA", "。"),
    *(" ", " ", " ", " ", "\n", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000"),
    *("A sentence of five words.", "lorem ipsum", "JavaScript", "privacy policy", "x" * 31),
)
curious_texts = st.lists(st.sampled_from(_PARTS), max_size=60).map("".join) | st.text(max_size=200)
"""Short texts of what the rules look at, in any order; and any text."""
