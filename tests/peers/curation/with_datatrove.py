"""Writes what datatrove's filters make of documents: ``python -m tests.peers.curation.with_datatrove IN OUT``.

A line of the input is a list of a document's number and its text, in JSON; a line of the output its number and the
answer of each variant that is applied to it: a reason, or a list of the text that is kept.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4ParagraphFilter,
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_words

from tests.peers.curation.variants import VARIANTS, applied

FILTERS: Final[dict[str, Any]] = {
    "gopher_quality": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "c4_quality": C4QualityFilter,
    "c4_paragraph": C4ParagraphFilter,
    "fineweb_quality": FineWebQualityFilter,
}


def main() -> None:
    """Answer for all documents of a file."""
    split_into_words("IS_ALPHA")  # the first one is a word, all later ones are left out (see our words.py)
    filters = [FILTERS[variant.step](**variant.parameters) for variant in VARIANTS]
    with Path(sys.argv[1]).open() as given, Path(sys.argv[2]).open("w") as written:
        for line in given:
            number, text = json.loads(line)
            answers = {at: answer(filters[at], text) for at, _ in applied(number)}
            written.write(json.dumps([number, answers]) + "\n")


def answer(step: Any, text: str) -> str | list[str]:
    """Return a filter's answer for one text."""
    document = Document(text=text, id="")
    try:
        verdict = step.filter(document)
    except (ArithmeticError, ValueError, AssertionError) as error:
        return f"raises {type(error).__name__}"
    return str(verdict[1]) if isinstance(verdict, tuple) else [document.text]


if __name__ == "__main__":
    main()
