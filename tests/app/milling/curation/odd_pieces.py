"""Hypothesis strategies for texts that rules of words and lines look at."""

from typing import Final

from hypothesis import strategies as st

CHUNKS: Final = (
    *(
        "the",
        "be",
        "to",
        "of",
        "and",
        "that",
        "have",
        "with",
        "word",
        "Word",
        "US",
        "a",
        "I",
        "x",
        "can't",
        "I'm",
        "it's",
    ),
    *(
        "foo:)",
        ")",
        ":)",
        ":-(",
        "))",
        "'",
        "('a')",
        "- ",
        "8)",
        "a.m.",
        "10a.m.",
        "e.g.",
        "U.S.",
        "Mr.",
        "o'clock",
        "'em",
    ),
    *(
        "http://a.b/c",
        "www.example.com",
        "a@b.co",
        "1.2.3.4",
        "3.14",
        "x.y.z",
        "a.b:80/x",
        "ftp://é.fr",
        "10km",
        "5m/s",
    ),
    *(
        "$5",
        "US$10",
        "30°C.",
        "AB.",
        "1+1",
        "a-b",
        "a--b",
        "a—b",
        "a,b",
        "a.B",
        "x=y",
        "a/b",
        "…",
        "..",
        "...",
        "......",
    ),
    *("#", "##", "{", "[1]", "[edit]", "[citation needed]", "[]", "[\u0663]", "lorem ipsum", "JavaScript", "cookies"),
    *("privacy policy", "coo\u212aie policy", "use cookies", "terms of use", "\u0130stanbul", "é", "naïve", "Straße"),
    *(
        "語",
        "日本語。",
        "한국",
        "שלום",
        "العربية؟",
        "हिन्दी।",
        "😀",
        "♥",
        "\u0301",
        "e\u0301\u0323",
        "\0",
        "\ufffd",
        "¡",
        "«x»",
    ),
    *("•", "-", "• item", "- item", "!", "?", '"', "end.", "end!", 'end."', "IS_ALPHA", "x" * 30, "9" * 12, "(" * 40),
    *("y" * 1023, "z" * 1025, "(" * 1030, "ab" * 1100),
)
"""What stands between white space, with what spaCy's rules and the filters' look for."""
WHITE: Final = (
    *(
        " ",
        " ",
        " ",
        " ",
        "\n",
        "\n",
        "\n\n",
        "\n\n\n",
        "  ",
        "\t",
        "\r\n",
        "\r",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1d",
        "\x1e",
    ),
    *("\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "", "", " \n "),
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
