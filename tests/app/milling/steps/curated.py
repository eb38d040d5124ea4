"""Documents, answers and odd texts for tests of steps."""

import random
from typing import Any, Final

from hypothesis import strategies as st

from tokenmill.app.milling.steps.pipeline import open_pipeline, read_pipeline
from tokenmill.app.milling.steps.protocol import Rejected, Step
from tokenmill.documents import Document, Limits

LIMITS: Final = Limits(1 << 22, 128, 256)
PLAIN: Final = "The mill grinds the grain that the farmers bring, and the flour is sold in the town.\n"


def opened(name: str, *, metadata_fields: tuple[str, ...] = (), **values: Any) -> Step:
    """Return a step as a recipe opens it."""
    entries, lists = read_pipeline([{"name": name, **values}])
    (step,) = open_pipeline(entries, lists, metadata_fields=metadata_fields, limits=LIMITS)
    return step


def reason(step: Step, text: str, **fields: str) -> str:
    """Return the reason for which a text is filtered out; nothing where it stays."""
    answer = step(Document(text, None, fields))
    return answer.reason if isinstance(answer, Rejected) else ""


def changed(step: Step, text: str) -> str:
    answer = step(Document(text))
    assert isinstance(answer, Document)
    return answer.text


def odd_texts(size: int) -> dict[str, str]:
    rng = random.Random(1)
    return {
        "plain": PLAIN * (size // len(PLAIN)),
        "one line": PLAIN.replace("\n", " ") * (size // len(PLAIN)),
        "lines": "a\n" * (size // 2),
        "equal words": "word " * (size // 5),
        "no spaces": "".join(rng.choices("abcdefgh", k=size)),
        "combining marks": "\u0301\u0323" * (size // 4),
        "right to left": "\u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645 " * (size // 18),
        "mixed scripts": "a\u0431\u4e2d\u3042\u0e01 " * (size // 13),
        "nuls": "\x00" * size,
        "numbers": "1.1.1.1." * (size // 8),
        "ats": "a@" * (size // 2),
        "atoms": "a-" * (size // 2) + "@",
        "labels": "a@" + "b-" * (size // 2),
        "ampersands": "&amp;" * (size // 5),
        "mojibake": "\u00e2\u20ac\u0153" * (size // 8),
    }


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
