"""Documents and answers for tests of the steps of ``[[steps]]``."""

import random
from typing import Any, Final

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
    """Return texts of about ``size`` bytes that make rules explode."""
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
