"""The filters of Gopher, C4 and FineWeb; tests/peers/curation compares them with datatrove's."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import curious_texts, reason
from tokenmill.app.milling.steps.c4_quality import C4Quality
from tokenmill.app.milling.steps.fineweb_quality import FinewebQuality
from tokenmill.app.milling.steps.gopher_quality import GopherQuality
from tokenmill.app.milling.steps.gopher_repetition import (
    GopherRepetition,
    repeated_sequence_characters,
    repetitions,
    top_sequence_characters,
)
from tokenmill.app.milling.steps.protocol import Rejected, Step
from tokenmill.documents import Document

pytest.importorskip("spacy")
GOOD = "We have to look at the words of that text with care and patience. " * 5
NO_BOUNDS: Any = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)


def gopher(**bounds: float) -> GopherQuality:
    return GopherQuality(**(NO_BOUNDS | bounds))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, ""),
        ("", "gopher_short_doc"),
        ("the of " * 24 + "the", "gopher_short_doc"),
        ("word " * 49 + ". ! ? " * 20, "gopher_short_doc"),
        ("words that " * 50_001, "gopher_long_doc"),
        ("to be " * 50, "gopher_below_avg_threshold"),
        ("responsibility and considerations " * 50, "gopher_above_avg_threshold"),
        (GOOD + "# " * 10, "gopher_too_many_hashes"),
        (GOOD + "hm... " * 5 + "hm… " * 5, "gopher_too_many_ellipsis"),
        ("- We have the words that care\n  • for the text and that is all\n" * 10, "gopher_too_many_bullets"),
        (
            "We have all the words that care for the text and we look at them with all our patience...\n" * 4,
            "gopher_too_many_end_ellipsis",
        ),
        (GOOD + "123 " * 30, "gopher_below_alpha_threshold"),
        ("Nothing here stands between these long sentences, which lack common parts. " * 6, "gopher_enough_stop_words"),
        (GOOD.upper(), "gopher_enough_stop_words"),
    ],
)
@pytest.mark.cases(5)
def test_each_rule_of_gopher_quality_has_a_reason(text: str, expected: str) -> None:
    assert reason(GopherQuality(), text) == expected


@given(curious_texts)
def test_no_bound_at_all_keeps_every_text(text: str) -> None:
    """0 and null stand for no bound; nothing is divided by zero."""
    assert reason(gopher(), text) == ""
    nulls: dict[str, None] = dict.fromkeys(NO_BOUNDS)
    assert reason(GopherQuality(**nulls), text) == ""  # type: ignore[arg-type]


UNIQUE = "\n".join(f"w{number}a x{number}b y{number}c" for number in range(40))


def counted(**bounds: object) -> GopherRepetition:
    """Return the filter with these bounds alone."""
    lines = dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac"))
    return GopherRepetition(**{**lines, "top_n_grams": (), "dup_n_grams": (), **bounds})  # type: ignore[arg-type]


@pytest.mark.parametrize("n", range(2, 11))
def test_a_bound_of_sequences_itself_is_within(n: int) -> None:
    text = " ".join([*(f"w{number}" for number in range(n))] * 2)
    sequence = " ".join(f"w{number}" for number in range(n))
    ratio = 2 * len(sequence) / len(text)
    assert reason(counted(top_n_grams=((n, ratio),)), text) == ""
    assert reason(counted(top_n_grams=((n, ratio - 1e-9),)), text) == f"top_{n}_gram"
    ratio = len(sequence.replace(" ", "")) / len(text)
    assert reason(counted(dup_n_grams=((n, ratio),)), text) == ""
    assert reason(counted(dup_n_grams=((n, ratio - 1e-9),)), text) == f"duplicated_{n}_n_grams"


words = st.lists(st.sampled_from(["a", "b", "ab", "ba", "語"]), max_size=40).map(tuple)


@given(words, st.integers(1, 6))
def test_repeated_sequences_are_those_that_begin_behind_the_last_one(words: tuple[str, ...], n: int) -> None:
    begun: list[int] = []
    characters = at = 0
    while at <= len(words) - n:
        this = "".join(words[at : at + n])
        if any("".join(words[before : before + n]) == this for before in begun):
            characters += len(this)
            at += n
        else:
            begun.append(at)
            at += 1
    assert repeated_sequence_characters(words, n) == characters <= len("".join(words))


@given(words, st.integers(1, 6))
def test_the_first_of_the_most_frequent_sequences_counts(words: tuple[str, ...], n: int) -> None:
    sequences = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
    best = min(sequences, key=lambda one: (-sequences.count(one), sequences.index(one)), default="")
    assert top_sequence_characters(words, n) == len(best) * sequences.count(best)


@given(st.lists(st.text(max_size=2)))
def test_what_occurred_before_counts_each_time(items: list[str]) -> None:
    counts = Counter(items)
    assert repetitions(items) == (
        len(items) - len(counts),
        sum(len(item) * (count - 1) for item, count in counts.items()),
    )


def test_sequences_are_compared_as_they_are_joined() -> None:
    assert repeated_sequence_characters(("ab", "c", "a", "bc"), 2) == 3
    assert top_sequence_characters(("ab", "c", "a", "bc"), 2) == 4


@pytest.mark.parametrize("n", [0, -1, 33])
def test_sequences_have_a_length_that_can_be_counted(n: int) -> None:
    with pytest.raises(ValueError, match="top_n_grams has sequences of"):
        GopherRepetition(top_n_grams=((n, 0.1),))


LONG = "a line of more than thirty characters"
WITHOUT_PUNCTUATION = partial(FinewebQuality, line_punct_exclude_zero=True)
OTHER_ENDS = partial(FinewebQuality, stop_chars=(";", "end"))


def looser(**bounds: float) -> FinewebQuality:
    """Return the filter with these bounds alone."""
    nothing = {"line_punct_thr": 0.0, "short_line_thr": 1.0, "char_duplicates_ratio": 1.0, "new_line_ratio": 1e9}
    return FinewebQuality(**(nothing | bounds))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (GopherRepetition, UNIQUE, ""),
        (GopherRepetition, "", "empty"),
        (GopherRepetition, " ", ""),
        (GopherRepetition, UNIQUE + "\n\na" * 3, "dup_para_frac"),
        (GopherRepetition, f"{UNIQUE}\n\n" * 2 + UNIQUE.replace("\n", "\n\n"), "dup_para_char_frac"),
        (GopherRepetition, UNIQUE + "\na" * 30, "dup_line_frac"),
        (GopherRepetition, UNIQUE + ("\n" + "long line " * 20) * 3, "dup_line_char_frac"),
        (GopherRepetition, UNIQUE + "\n" + "good day " * 40, "top_2_gram"),
        (GopherRepetition, UNIQUE + "\n" + "a fine day " * 25, "top_3_gram"),
        (GopherRepetition, UNIQUE + "\n" + "what a fine day, " * 10, "top_4_gram"),
        (GopherRepetition, UNIQUE + "\n" + "all of us had what was a fine day in town " * 6, "duplicated_5_n_grams"),
        (FinewebQuality, f"{LONG}.", ""),
        (FinewebQuality, "", "empty"),
        (FinewebQuality, " \n\t\n", "empty"),
        (FinewebQuality, LONG, "line_punct_ratio"),
        (FinewebQuality, f"{LONG}. ", "line_punct_ratio"),
        (FinewebQuality, "Short.\nLines.\nHere.", "short_line_ratio"),
        (FinewebQuality, f"{LONG}!\n{LONG}!", "char_dup_ratio"),
        (FinewebQuality, "word, " * 9 + "end." + "\n" * 12 + LONG, "list_ratio"),
        (FinewebQuality, f"{LONG}।", ""),
        (WITHOUT_PUNCTUATION, LONG, ""),
        (
            WITHOUT_PUNCTUATION,
            "\n".join([f"{LONG}.", *(f"{LONG} {number}" for number in range(9))]),
            "line_punct_ratio",
        ),
        (OTHER_ENDS, f"{LONG};", ""),
        (OTHER_ENDS, f"{LONG} end", ""),
        (OTHER_ENDS, f"{LONG}.", "line_punct_ratio"),
        (looser, "IS_ALPHA\n\n", ""),  # the one word is left out: there is none to divide by
        # a share of no words is 0, where datatrove divides by zero
        (partial(GopherQuality, min_doc_words=0), "", "gopher_below_alpha_threshold"),
        (partial(GopherQuality, min_doc_words=0), " \n", "gopher_below_alpha_threshold"),
    ],
)
def test_each_rule_has_a_reason(kind: Callable[[], Step], text: str, expected: str) -> None:
    assert reason(kind(), text) == expected


@pytest.mark.parametrize(
    ("filter_with", "name", "bound", "beyond", "text", "expected"),
    [
        (gopher, "min_doc_words", 3, 4, "words, that have!", "gopher_short_doc"),
        (gopher, "max_doc_words", 3, 2, "words, that have!", "gopher_long_doc"),
        (gopher, "min_avg_word_length", 4, 4.1, "the that these.", "gopher_below_avg_threshold"),
        (gopher, "max_avg_word_length", 4, 3.9, "the that these.", "gopher_above_avg_threshold"),
        (gopher, "max_symbol_word_ratio", 0.25, 0.24, "# the that these", "gopher_too_many_hashes"),
        (gopher, "max_symbol_word_ratio", 0.5, 0.49, "the… that...", "gopher_too_many_ellipsis"),
        (gopher, "max_bullet_lines_ratio", 0.5, 0.49, " - the\nthat -\n\t•\n\n", "gopher_too_many_bullets"),
        (gopher, "max_ellipsis_lines_ratio", 0.5, 0.49, "the... \n…that\n…\n\n", "gopher_too_many_end_ellipsis"),
        (gopher, "max_non_alpha_words_ratio", 0.5, 0.51, "the 1a 2 !", "gopher_below_alpha_threshold"),
        (gopher, "min_stop_words", 2, 3, "the that the The", "gopher_enough_stop_words"),
        (counted, "dup_para_frac", 1 / 2, 1 / 2 - 1e-9, "ab\n\nab", "dup_para_frac"),
        (counted, "dup_para_frac", 1 / 2, 1 / 2 - 1e-9, "\n\nab\n\nab\n\n", "dup_para_frac"),
        (counted, "dup_para_char_frac", 2 / 6, 2 / 6 - 1e-9, "ab\n\nab", "dup_para_char_frac"),
        (counted, "dup_line_frac", 1 / 3, 1 / 3 - 1e-9, "ab\nc\nab", "dup_line_frac"),
        (counted, "dup_line_char_frac", 2 / 7, 2 / 7 - 1e-9, "ab\nc\nab", "dup_line_char_frac"),
        (counted, "dup_line_frac", 1 / 4, 1 / 4 - 1e-9, "ab\n\nc\nab\n", "dup_line_frac"),
        (looser, "line_punct_thr", 0.5, 0.51, f"{LONG}\n\n{LONG}?", "line_punct_ratio"),
        (looser, "short_line_thr", 0.5, 0.49, f"{'x' * 30}\n{'x' * 31}", "short_line_ratio"),
        (looser, "char_duplicates_ratio", 0.4, 0.39, "ab\n\nab\nc", "char_dup_ratio"),
        (looser, "new_line_ratio", 0.5, 0.49, "one two\nthree four\n", "list_ratio"),
    ],
)
def test_a_bound_itself_is_within(
    *, filter_with: Callable[..., Step], name: str, bound: float, beyond: float, text: str, expected: str
) -> None:
    assert reason(filter_with(**{name: bound}), text) == ""
    assert reason(filter_with(**{name: beyond}), text) == expected


FIVE = "\n".join(f"Here is line {number}." for number in range(5))


def outcome(step: C4Quality, text: str) -> str:
    """Return the text that is left, or the reason in angle brackets."""
    answer = step(Document(text, "id", {"a": 1}))
    return f"<{answer.reason}>" if isinstance(answer, Rejected) else answer.text


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ("", FIVE),
        ("\n\n", FIVE),
        ("\nno stop here", FIVE),
        ("\nIt goes on...", FIVE),
        ("\nTwo words.", FIVE),
        ("\nJust three words.", f"{FIVE}\nJust three words."),
        ("\r\n \tJust three words!\x85", f"{FIVE}\nJust three words!"),
        ('\nHe said "no!"', f'{FIVE}\nHe said "no!"'),
        ("\nIt needs JavaScript enabled.", FIVE),
        ("\nRead our Privacy Policy here.", FIVE),
        (f"\nA word of {'x' * 1001} here.", FIVE),
        (f"\nA word of {'x' * 1000} here.", f"{FIVE}\nA word of {'x' * 1000} here."),
        ("\nWords have sources.[1][edit][citation needed][]", f"{FIVE}\nWords have sources."),
        ("\n[1] [2] end.", f"{FIVE}\n  end."),
        ("\nSome Lorem Ipsum for you.", "<lorem_ipsum>"),
        ("\nSome Lorem Ipsum for you", FIVE),
        ("\nA curly { in it.", "<curly_bracket>"),
        ("\nA curly { in it", FIVE),
        ("\nJavascript with { in it.", FIVE),
    ],
)
def test_each_rule_for_lines(more: str, left: str) -> None:
    assert outcome(C4Quality(), FIVE + more) == left


def test_too_few_sentences_are_left() -> None:
    assert outcome(C4Quality(), FIVE.replace(".\n", ". ")) == FIVE.replace(".\n", ". ")
    assert outcome(C4Quality(), FIVE[:-1]) == "<too_few_sentences>"
    assert outcome(C4Quality(min_num_sentences=4), FIVE[:-1]) == FIVE[: FIVE.rindex("\n")]
    assert outcome(C4Quality(), "") == "<too_few_sentences>"
    assert outcome(C4Quality(min_num_sentences=-1), "no line is left") == ""


@pytest.mark.parametrize(
    ("parameter", "value", "line"),
    [
        ("remove_citations", False, "Words have sources [1]."),
        ("filter_no_terminal_punct", False, "no stop here"),
        ("min_words_per_line", -1, "One."),
        ("max_word_length", -1, f"A word of {'x' * 1001} here."),
        ("filter_lorem_ipsum", False, "Some lorem ipsum here."),
        ("filter_javascript", False, "It needs JavaScript enabled."),
        ("filter_curly_bracket", False, "A curly { in it."),
        ("filter_policy", False, "This site uses cookies."),
    ],
)
def test_each_rule_can_be_left_out(parameter: str, value: int, line: str) -> None:
    text = f"{FIVE}\n{line}"
    assert outcome(C4Quality(), text) != text
    assert outcome(C4Quality(**{parameter: value}), text) == text  # type: ignore[arg-type]


def test_sentences_can_be_looked_at_instead_of_lines() -> None:
    text = "One is here. Two is\nhere. No. Three is here! Four is here? Five is here. six is not"
    left = "One is here. Two is\nhere. Three is here! Four is here? Five is here."
    assert outcome(C4Quality(split_paragraph=False), text) == left


@given(curious_texts)
def test_what_is_left_are_lines_of_the_text(text: str) -> None:
    step = C4Quality(min_num_sentences=1, remove_citations=False, filter_curly_bracket=False)
    answer = step(Document(text, None, {}))
    lines = [line.strip() for line in text.splitlines()]
    whole = [
        line for line in lines if line.rstrip(".?!\"'") != line and not line.endswith("...") and len(line.split()) > 2
    ]
    good = [line for line in whole if not any(word in line.lower() for word in ("javascript", "privacy policy"))]
    if any("lorem ipsum" in line for line in whole):
        assert answer == Rejected("lorem_ipsum")
    elif not good:
        assert answer == Rejected("too_few_sentences")
    else:
        assert isinstance(answer, Document)
        assert answer.text == "\n".join(good)
        assert step(answer) == answer


def test_id_and_fields_stay() -> None:
    changed = C4Quality()(Document(f"{FIVE}\nno", 7, {"a": 1}))
    assert changed == Document(FIVE, 7, {"a": 1})
    same = Document(FIVE, 7, {"a": 1})
    assert C4Quality()(same) is same
