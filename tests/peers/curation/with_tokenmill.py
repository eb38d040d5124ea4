"""Writes what our steps make of documents, as `with_datatrove` does for datatrove's filters.

The plain steps and the kernels both answer; where they differ, the answer says so, and is none of datatrove's.
"""

import sys
from typing import Final

from tests.peers.curation.variants import VARIANTS, Answer, answer_shards
from tokenmill.app.milling.curation.fast_steps import with_kernels
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.pipeline import STEPS
from tokenmill.app.milling.steps.protocol import Answer as StepAnswer
from tokenmill.app.milling.steps.protocol import Rejected, Step
from tokenmill.documents import Document
from tokenmill.errors import RecordError

OF_DATATROVE: Final = {"too_few_paragraphs": "< 3 paragraphs"}
"""What datatrove calls reasons that have another name here."""


def main() -> None:
    plain = [STEPS[variant.step](**variant.parameters) for variant in VARIANTS]
    fast = with_kernels(plain)
    answer_shards(sys.argv[1:], "with_tokenmill", lambda at, text: answer(plain[at], fast[at], text))


def answer(plain: Step, fast: Step, text: str) -> Answer:
    document = Document(text, None, {})
    found = _named(plain(document))
    changed = dict(fast.many(DocumentColumns.without_fields([text], [None])))
    quick = _named(changed.get(0, document))
    return found if quick == found else f"the kernel says {quick}, the plain step {found}"


def _named(found: StepAnswer) -> Answer:
    if isinstance(found, RecordError):
        return found.reason
    return OF_DATATROVE.get(found.reason, found.reason) if isinstance(found, Rejected) else [found.text]


if __name__ == "__main__":
    main()
