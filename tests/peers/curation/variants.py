"""The settings under which filters are compared, and the files of documents and answers; for both environments.

A line of ``NAME.documents`` is a list of a document's number and its text, in JSON. A line of ``NAME.<program>`` is its
number and the answer of each variant that is applied to it: a reason, or a list of the text that is kept.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

Answer = str | list[str]


class Variant(NamedTuple):
    step: str
    parameters: dict[str, Any]
    one_in: int = 1


VARIANTS: Final = (
    Variant("gopher_quality", {}),
    Variant("gopher_repetition", {}),
    Variant("c4_quality", {}),
    Variant("c4_quality", {"filter_no_terminal_punct": False}),
    Variant("c4_paragraph", {}),
    Variant("fineweb_quality", {}),
    # so that rules are reached which stand behind others that filter out most texts
    Variant("gopher_quality", {"min_doc_words": 1, "max_avg_word_length": 100, "max_non_alpha_words_ratio": 0.5}, 16),
    Variant("gopher_quality", {"min_doc_words": 1, "min_avg_word_length": 0, "max_symbol_word_ratio": 0.01}, 16),
    Variant("gopher_repetition", {"top_n_grams": [], "dup_n_grams": [[n, 0.02] for n in range(5, 11)]}, 16),
    Variant("gopher_repetition", {"top_n_grams": [[n, 0.04] for n in (4, 3, 2)], "dup_line_frac": 0.01}, 16),
    Variant("fineweb_quality", {"line_punct_thr": 0, "short_line_thr": 1, "char_duplicates_ratio": 1}, 16),
    Variant("fineweb_quality", {"line_punct_thr": 0, "line_punct_exclude_zero": True, "short_line_thr": 0.3}, 16),
    Variant("c4_quality", {"split_paragraph": False, "min_num_sentences": 2}, 16),
    Variant("c4_quality", {"filter_curly_bracket": False, "min_num_sentences": -1, "min_words_per_line": -1}, 16),
)


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
                applied = [at for at, variant in enumerate(VARIANTS) if (number + at) % variant.one_in == 0]
                found = {at: answer(at, text) for at in applied}
                written.write(json.dumps([number, found]) + "\n")
        unfinished.rename(answers)
