"""Writes what our plain steps make of documents, as `with_datatrove` does for datatrove's filters."""

import sys
from typing import Any, Final

from tests.peers.curation.shards import Answer, answer_shards
from tests.peers.curation.variants import VARIANTS
from tokenmill.documents import Document
from tokenmill.stages.steps.c4_paragraph import C4Paragraph
from tokenmill.stages.steps.c4_quality import C4Quality
from tokenmill.stages.steps.fineweb_quality import FinewebQuality
from tokenmill.stages.steps.gopher_quality import GopherQuality
from tokenmill.stages.steps.gopher_repetition import GopherRepetition
from tokenmill.stages.steps.protocol import Rejected, Step

STEPS: Final[dict[str, Any]] = {
    "gopher_quality": GopherQuality,
    "gopher_repetition": GopherRepetition,
    "c4_quality": C4Quality,
    "c4_paragraph": C4Paragraph,
    "fineweb_quality": FinewebQuality,
}
OF_DATATROVE: Final = {"too_few_paragraphs": "< 3 paragraphs"}
"""What datatrove calls reasons that have another name here."""


def main() -> None:
    """Answer for all documents of these files; see `tests.peers.curation.shards`."""
    steps = [STEPS[variant.step](**variant.parameters) for variant in VARIANTS]
    answer_shards(sys.argv[1:], "with_tokenmill", lambda at, text: answer(steps[at], text))


def answer(step: Step, text: str) -> Answer:
    """Return a step's answer for one text."""
    found = step(Document(text, None, {}))
    return OF_DATATROVE.get(found.reason, found.reason) if isinstance(found, Rejected) else [found.text]


if __name__ == "__main__":
    main()
