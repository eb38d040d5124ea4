"""Lists of steps with every step of the registry, and texts of which they keep some."""

import json
from pathlib import Path
from typing import Any, Final

BAD_WORD: Final = "slagheap"
LISTED_DOMAIN: Final = "bad.example"
EVALUATION: Final = "which of the seven sisters sold the old grey mill beside the river to the miller"
"""A text of an evaluation set, which is longer than a run of words."""
TOPICS: Final = ("grain", "flour", "bread", "water", "stone", "wheel", "farm", "town", "horse", "road")
LENIENT: Final[dict[str, dict[str, Any]]] = {
    "language": {"language_threshold": 0.1},
    "gopher_repetition": {"top_n_grams": [[2, 0.5]], "dup_n_grams": [[5, 0.6]], "dup_line_frac": 0.5},
    "gopher_quality": {"min_doc_words": 8},
    "c4_quality": {"min_num_sentences": 1},
    "fineweb_quality": {"char_duplicates_ratio": 0.5},
    "regex": {"regex_exp": r"(?i)click\s+here"},
    "length": {"min_words": 5, "max_chars": 1500},
    "sample": {"rate": 0.8},
    "replace_pii": {"email_replacement": "someone@example.com"},
}


def every_step(folder: Path) -> list[dict[str, Any]]:
    """Return entries of ``[[steps]]``: each step of the registry, with lists that this writes into ``folder``."""
    lists = {"domains": LISTED_DOMAIN, "words": f"{BAD_WORD}\nvery bad phrase", "evaluation": EVALUATION}
    for name, content in lists.items():
        (folder / name).write_text(content + "\n")
    given = {
        **LENIENT,
        "url": {"extra_domains": str(folder / "domains"), "banned_subwords": ["casino"]},
        "words": {"words": str(folder / "words")},
        "c4_paragraph": {},
        "decontaminate": {"texts": str(folder / "evaluation"), "n_grams": 8},
        "fix_unicode": {},
        "fold_capitals": {},
    }
    return [{"name": name, **values} for name, values in given.items()]


def sentence(number: int) -> str:
    first, second, third = (TOPICS[number // place % len(TOPICS)] for place in (1, 10, 100))
    return f"The {first} of the {second} was good, and people have come with a {third} to be near it in {number}."


def text_of(numbers: list[int], extra: str) -> str:
    """Return sentences, three a line, which ``c4_paragraph`` takes for paragraphs, and something at their end."""
    lines = (numbers[at : at + 3] for at in range(0, len(numbers), 3))
    written = [" ".join(sentence(number) for number in line) for line in lines]
    return "\n".join([*written, extra] if extra else written)


EXTRAS: Final = (
    *("", "", "", ""),
    f"A {BAD_WORD} it is.",
    EVALUATION + ".",
    "Click here to read.",
    "Write to a.b@c.example.org now.",
    "The host 8.8.8.8 answers, and 10.0.0.1 does not.",
    "It is \u00e2\u20ac\u0153quoted\u00e2\u20ac\x9d text.",
    "lorem ipsum",
    "A { bracket.",
    "# # # # # # # # # #",
    "...",
    "\u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645",
    "a\u0301\u0323\x00b",
)
"""What makes one step or another change a text, or filter it out."""


def record_of(number: int, text: str, url: str) -> bytes:
    return json.dumps({"id": number, "text": text, "url": url}).encode()
