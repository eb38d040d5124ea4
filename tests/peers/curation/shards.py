"""Files of documents, and beside each the files of answers to them; for both environments.

A line of ``NAME.documents`` is a list of a document's number and its text, in JSON. A line of ``NAME.<program>`` is its
number and the answer of each variant that is applied to it: a reason, or a list of the text that is kept.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.peers.curation.variants import applied

Answer = str | list[str]


def answer_shards(paths: Iterable[str], program: str, answer: Callable[[int, str], Answer]) -> None:
    """Write the answers to each file of documents that has none of this program yet.

    ``answer`` gets the number of a variant and a text.
    """
    for path in map(Path, paths):
        answers = path.with_suffix(f".{program}")
        if answers.exists():
            continue
        unfinished = path.with_suffix(f".{program}.new")
        with path.open() as given, unfinished.open("w") as written:
            for line in given:
                number, text = json.loads(line)
                found = {at: answer(at, text) for at, _ in applied(number)}
                written.write(json.dumps([number, found]) + "\n")
        unfinished.rename(answers)
