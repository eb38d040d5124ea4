"""Texts with what spaCy's rules and the filters look at, for several tests."""

from hypothesis import strategies as st

parts = st.sampled_from(
    [
        *("the", "of", "and", "word", "Ab", "a.b", "can't", "it's", "I'm", "foo:)", ":)", ")", ":))", "8)", "o.O", "'"),
        *("(", "…", "...", ".", "..", "!", "?", '"', "#", "-", "•", "{", "[1]", "[edit]", "$", "12.5", "5km", "1,000"),
        *("http://a.b/c", "a@b.co", "x:y", "a.m.", "and/or", "語", "か", "é", "🙂", "\u0301", "\0", "IS_ALPHA", "。"),
        *(" ", " ", " ", " ", "\n", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000"),
        *("A sentence of five words.", "lorem ipsum", "JavaScript", "privacy policy", "x" * 31),
    ]
)
curious_texts = st.one_of(st.lists(parts, max_size=60).map("".join), st.text(max_size=200))
"""What the rules look at, in any order; and any text."""
