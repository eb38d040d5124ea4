"""The settings under which filters are compared; names of the standard library alone, for both environments."""

from typing import Any, Final, NamedTuple


class Variant(NamedTuple):
    step: str
    parameters: dict[str, Any]
    one_in: int = 1
    """It is applied to one document in so many."""


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


def applied(number: int) -> list[tuple[int, Variant]]:
    """Return the variants, and their numbers, that are applied to a document."""
    return [(at, variant) for at, variant in enumerate(VARIANTS) if (number + at) % variant.one_in == 0]
