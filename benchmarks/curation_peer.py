"""What datatrove makes of documents, and in how much time: ``python -m benchmarks.curation_peer IN OUT``.

Runs where datatrove is installed. A line of IN is a text in JSON; OUT gets the CPU seconds of each filter, and the
answer for each text: a reason, or the text that is kept.
"""

import json
import sys
from pathlib import Path
from time import process_time
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_parts, split_into_words


def main() -> None:
    """Apply FineWeb's filters one after the other to each document."""
    texts = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    filters: dict[str, Any] = {
        "gopher_repetition": GopherRepetitionFilter(),
        "gopher_quality": GopherQualityFilter(),
        "c4_quality": C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb_quality": FineWebQualityFilter(),
    }
    split_into_words("IS_ALPHA begins, and the pipeline is there.")
    split_into_parts.cache_clear()
    seconds = dict.fromkeys(filters, 0.0)
    answers: list[list[str]] = []
    for text in texts:
        document = Document(text=text, id="")
        verdict: Any = True
        for name, own in filters.items():
            began = process_time()
            verdict = own.filter(document)
            seconds[name] += process_time() - began
            if verdict is not True:
                break
        answers.append(["kept", document.text] if verdict is True else [name, verdict[1]])
    Path(sys.argv[2]).write_text(json.dumps({"seconds": seconds, "answers": answers}))


if __name__ == "__main__":
    main()
