"""Writes what datatrove's filters make of documents: ``python -m tests.peers.curation.with_datatrove FILES…``."""

import sys
from typing import Any, Final

from datatrove.data import Document
from datatrove.pipeline import filters as theirs
from datatrove.utils.text import split_into_words

from tests.peers.curation.variants import VARIANTS, Answer, answer_shards

FILTERS: Final[dict[str, Any]] = {
    "gopher_quality": theirs.GopherQualityFilter,
    "gopher_repetition": theirs.GopherRepetitionFilter,
    "c4_quality": theirs.C4QualityFilter,
    "c4_paragraph": theirs.C4ParagraphFilter,
    "fineweb_quality": theirs.FineWebQualityFilter,
}


def main() -> None:
    split_into_words("IS_ALPHA")  # the first one is a word, all later ones are left out (see our words.py)
    filters = [FILTERS[variant.step](**variant.parameters) for variant in VARIANTS]
    answer_shards(sys.argv[1:], "with_datatrove", lambda at, text: answer(filters[at], text))


def answer(step: Any, text: str) -> Answer:
    document = Document(text=text, id="")
    try:
        verdict = step.filter(document)
    except (ArithmeticError, ValueError, AssertionError) as error:
        return f"raises {type(error).__name__}"
    return str(verdict[1]) if isinstance(verdict, tuple) else [document.text]


if __name__ == "__main__":
    main()
