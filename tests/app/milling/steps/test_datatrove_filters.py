"""The filters of Gopher, C4 and FineWeb, as datatrove has them."""

from collections import Counter
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.curation.texts import curious_texts
from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.curation.words import SYMBOLS, TERMINAL, english
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.datatrove_filters import (
    C4Quality,
    FinewebQuality,
    GopherQuality,
    GopherRepetition,
    repeated_sequence_characters,
    repetitions,
    top_sequence_characters,
)
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document

pytest.importorskip("spacy")
UNIQUE = "\n".join(f"w{number}a x{number}b y{number}c" for number in range(40))


def counted(**bounds: object) -> GopherRepetition:
    """Return the filter with these bounds alone."""
    lines = dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac"))
    return GopherRepetition(**{**lines, "top_n_grams": (), "dup_n_grams": (), **bounds})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (UNIQUE, ""),
        ("", "empty"),
        (" ", ""),
        (UNIQUE + "\n\na" * 3, "dup_para_frac"),
        (f"{UNIQUE}\n\n" * 2 + UNIQUE.replace("\n", "\n\n"), "dup_para_char_frac"),
        (UNIQUE + "\na" * 30, "dup_line_frac"),
        (UNIQUE + ("\n" + "long line " * 20) * 3, "dup_line_char_frac"),
        (UNIQUE + "\n" + "good day " * 40, "top_2_gram"),
        (UNIQUE + "\n" + "a fine day " * 25, "top_3_gram"),
        (UNIQUE + "\n" + "what a fine day, " * 10, "top_4_gram"),
        (UNIQUE + "\n" + "all of us had what was a fine day in town " * 6, "duplicated_5_n_grams"),
    ],
)
def test_each_rule_has_a_reason_of_repetitions(text: str, expected: str) -> None:
    """With the defaults."""
    assert reason(GopherRepetition(), text) == expected


@pytest.mark.parametrize(
    ("name", "ratio", "text"),
    [
        ("dup_para_frac", 1 / 2, "ab\n\nab"),
        ("dup_para_frac", 1 / 2, "\n\nab\n\nab\n\n"),
        ("dup_para_char_frac", 2 / 6, "ab\n\nab"),
        ("dup_line_frac", 1 / 3, "ab\nc\nab"),
        ("dup_line_char_frac", 2 / 7, "ab\nc\nab"),
        ("dup_line_frac", 1 / 4, "ab\n\nc\nab\n"),
    ],
)
def test_a_bound_of_lines_itself_is_within(name: str, ratio: float, text: str) -> None:
    """And a little less filters the text out."""
    assert reason(counted(**{name: ratio}), text) == ""
    assert reason(counted(**{name: ratio - 1e-9}), text) == name


@pytest.mark.parametrize("n", range(2, 11))
def test_a_bound_of_sequences_itself_is_within(n: int) -> None:
    """Of the most frequent one, and of those that occurred before."""
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
    """By looking back from each place, over all places that were begun at."""
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
    """Found by sorting."""
    sequences = [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]
    best = min(sequences, key=lambda one: (-sequences.count(one), sequences.index(one)), default="")
    assert top_sequence_characters(words, n) == len(best) * sequences.count(best)


@given(st.lists(st.text(max_size=2)))
def test_what_occurred_before_counts_each_time(items: list[str]) -> None:
    """All but the first of each."""
    counts = Counter(items)
    assert repetitions(items) == (
        len(items) - len(counts),
        sum(len(item) * (count - 1) for item, count in counts.items()),
    )


@given(curious_texts)
def test_stricter_bounds_filter_out_what_looser_ones_do(text: str) -> None:
    """No text raises an error."""
    answers = [reason(counted(dup_n_grams=((5, bound),)), text) for bound in (0.0, 0.1, 0.5, 1.0)]
    assert all(strict or not loose for strict, loose in pairwise(answers))
    assert (reason(GopherRepetition(), text) == "empty") == (not text)


def test_sequences_are_compared_as_they_are_joined() -> None:
    """As datatrove has it."""
    assert repeated_sequence_characters(("ab", "c", "a", "bc"), 2) == 3
    assert top_sequence_characters(("ab", "c", "a", "bc"), 2) == 4


@pytest.mark.parametrize("n", [0, -1, 33])
def test_sequences_have_a_length_that_can_be_counted(n: int) -> None:
    """The message says which parameter."""
    with pytest.raises(ValueError, match="top_n_grams has sequences of"):
        GopherRepetition(top_n_grams=((n, 0.1),))


def test_the_numbers_that_decided_are_told_of_repetitions() -> None:
    """For people."""
    answer = GopherRepetition()(Document("a\n\na\n\na", None, {}))
    assert isinstance(answer, Rejected)
    assert answer.detail == "0.6667 of paragraphs occurred before, over 0.3"


def test_many_answers_as_each_alone_of_repetitions() -> None:
    """For those that are filtered out."""
    columns = DocumentColumns.without_fields([UNIQUE, "a\n\na", ""], [None] * 3)
    assert list(GopherRepetition().many(columns)) == [(1, Rejected("dup_para_frac")), (2, Rejected("empty"))]


GOOD = "We have to look at the words of that text with care and patience. " * 5


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
def test_each_rule_has_a_reason_of_gopher(text: str, expected: str) -> None:
    """With the defaults."""
    assert reason(GopherQuality(), text) == expected


@pytest.mark.parametrize(
    ("name", "bound", "beyond", "text", "expected"),
    [
        ("min_doc_words", 3, 4, "words, that have!", "short_doc"),
        ("max_doc_words", 3, 2, "words, that have!", "long_doc"),
        ("min_avg_word_length", 4, 4.1, "the that these.", "below_avg_threshold"),
        ("max_avg_word_length", 4, 3.9, "the that these.", "above_avg_threshold"),
        ("max_symbol_word_ratio", 0.25, 0.24, "# the that these", "too_many_hashes"),
        ("max_symbol_word_ratio", 0.5, 0.49, "the… that...", "too_many_ellipsis"),
        ("max_bullet_lines_ratio", 0.5, 0.49, " - the\nthat -\n\t•\n\n", "too_many_bullets"),
        ("max_ellipsis_lines_ratio", 0.5, 0.49, "the... \n…that\n…\n\n", "too_many_end_ellipsis"),
        ("max_non_alpha_words_ratio", 0.5, 0.51, "the 1a 2 !", "below_alpha_threshold"),
        ("min_stop_words", 2, 3, "the that the The", "enough_stop_words"),
    ],
)
def test_a_bound_itself_is_within_of_gopher(name: str, bound: float, beyond: float, text: str, expected: str) -> None:
    """And the next one filters the text out; no other bound is looked at."""
    nothing = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)
    assert reason(GopherQuality(**(nothing | {name: bound})), text) == ""  # type: ignore[arg-type]
    assert reason(GopherQuality(**(nothing | {name: beyond})), text) == f"gopher_{expected}"  # type: ignore[arg-type]


@given(curious_texts)
def test_it_agrees_with_counts_of_another_kind_of_gopher(text: str) -> None:
    """Counted once, all in one; with bounds that texts of a few words reach."""
    step = GopherQuality(min_doc_words=3, max_doc_words=20, min_avg_word_length=2, max_avg_word_length=8)
    words = english().words(text)
    solid = [word for word in words if set(word) - SYMBOLS]
    mean = sum(map(len, solid)) / max(1, len(solid))
    lines = text.splitlines()
    count, line_count = max(1, len(words)), max(1, len(lines))
    rules = {
        "gopher_short_doc": len(solid) < 3,
        "gopher_long_doc": len(solid) > 20,
        "gopher_below_avg_threshold": mean < 2,
        "gopher_above_avg_threshold": mean > 8,
        "gopher_too_many_hashes": list(text).count("#") / count > 0.1,
        "gopher_too_many_ellipsis": (len(text.split("...")) + len(text.split("…")) - 2) / count > 0.1,
        "gopher_too_many_bullets": sum(line.strip()[:1] in {"•", "-"} for line in lines) / line_count > 0.9,
        "gopher_too_many_end_ellipsis": sum(line.strip()[-3:] == "..." or line.strip()[-1:] == "…" for line in lines)
        / line_count
        > 0.3,
        "gopher_below_alpha_threshold": sum(
            word.upper() != word.lower() or any(c.isalpha() for c in word) for word in words
        )
        / count
        < 0.8,
        "gopher_enough_stop_words": sum(word in words for word in step.stop_words) < 2,
    }
    assert reason(step, text) == next((name for name, broken in rules.items() if broken), "")


@given(curious_texts)
def test_no_bound_at_all_keeps_every_text(text: str) -> None:
    """0 and null stand for no bound; nothing is divided by zero."""
    nothing = dict.fromkeys((field.name for field in fields(GopherQuality) if field.name != "stop_words"), 0)
    assert reason(GopherQuality(**nothing), text) == ""  # type: ignore[arg-type]
    nulls: dict[str, None] = dict.fromkeys(nothing)
    assert reason(GopherQuality(**nulls), text) == ""  # type: ignore[arg-type]


def test_a_text_without_words_breaks_no_bound_of_lengths() -> None:
    """A share of nothing is 0, where datatrove divides by zero."""
    assert reason(GopherQuality(min_doc_words=0), "") == "gopher_below_alpha_threshold"
    assert reason(GopherQuality(min_doc_words=0), " \n") == "gopher_below_alpha_threshold"


def test_the_numbers_that_decided_are_told_of_gopher() -> None:
    """For people."""
    answer = GopherQuality()(Document("word " * 49, None, {}))
    assert isinstance(answer, Rejected)
    assert answer.detail == "49 words, fewer than 50"


def test_many_answers_as_each_alone_of_gopher() -> None:
    """For those that are filtered out."""
    columns = DocumentColumns.without_fields([GOOD, "short", GOOD], [None] * 3)
    assert list(GopherQuality().many(columns)) == [(1, Rejected("gopher_short_doc"))]


def test_it_describes_parameters_and_words() -> None:
    """Another spaCy is another stream."""
    said = GopherQuality(min_doc_words=7).describe()
    assert said["name"] == "gopher_quality"
    assert said["min_doc_words"] == 7
    assert said["words"] == english().describe()


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
    """With the defaults, behind five good lines."""
    assert outcome(C4Quality(), FIVE + more) == left


def test_too_few_sentences_are_left() -> None:
    """Five are enough, of one line or more."""
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
    """Then the line stays."""
    text = f"{FIVE}\n{line}"
    assert outcome(C4Quality(), text) != text
    assert outcome(C4Quality(**{parameter: value}), text) == text  # type: ignore[arg-type]


def test_sentences_can_be_looked_at_instead_of_lines() -> None:
    """They are joined by spaces."""
    text = "One is here. Two is\nhere. No. Three is here! Four is here? Five is here. six is not"
    left = "One is here. Two is\nhere. Three is here! Four is here? Five is here."
    assert outcome(C4Quality(split_paragraph=False), text) == left


@given(curious_texts)
def test_what_is_left_are_lines_of_the_text(text: str) -> None:
    """In their order, and no text raises an error; what is left is left again."""
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
    """And a document that stays as it is, is itself."""
    changed = C4Quality()(Document(f"{FIVE}\nno", 7, {"a": 1}))
    assert changed == Document(FIVE, 7, {"a": 1})
    same = Document(FIVE, 7, {"a": 1})
    assert C4Quality()(same) is same


def test_many_answers_as_each_alone_of_c4() -> None:
    """With those that change, and with the numbers that decided."""
    columns = DocumentColumns.without_fields([FIVE, f"{FIVE}\n", "no"], [None] * 3)
    changed, rejected = C4Quality().many(columns)
    assert changed == (1, columns.at(0))
    assert rejected == (2, Rejected("too_few_sentences"))
    assert isinstance(rejected[1], Rejected)
    assert rejected[1].detail == "0 sentences left, fewer than 5"


def test_it_describes_parameters_and_sentences() -> None:
    """Another spaCy is another stream."""
    said = C4Quality(filter_policy=False).describe()
    assert said["filter_policy"] is False
    assert said["words"] == english().describe()


LONG = "a line of more than thirty characters"


def looser(**bounds: float) -> FinewebQuality:
    """Return the filter with these bounds alone."""
    nothing = {"line_punct_thr": 0.0, "short_line_thr": 1.0, "char_duplicates_ratio": 1.0, "new_line_ratio": 1e9}
    return FinewebQuality(**(nothing | bounds))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LONG}.", ""),
        ("", "empty"),
        (" \n\t\n", "empty"),
        (LONG, "line_punct_ratio"),
        (f"{LONG}. ", "line_punct_ratio"),
        ("Short.\nLines.\nHere.", "short_line_ratio"),
        (f"{LONG}!\n{LONG}!", "char_dup_ratio"),
        ("word, " * 9 + "end." + "\n" * 12 + LONG, "list_ratio"),
        (f"{LONG}।", ""),
    ],
)
def test_each_rule_has_a_reason_of_fineweb(text: str, expected: str) -> None:
    """With the defaults."""
    assert reason(FinewebQuality(), text) == expected


@pytest.mark.parametrize(
    ("name", "bound", "beyond", "text", "expected"),
    [
        ("line_punct_thr", 0.5, 0.51, f"{LONG}\n\n{LONG}?", "line_punct_ratio"),
        ("short_line_thr", 0.5, 0.49, f"{'x' * 30}\n{'x' * 31}", "short_line_ratio"),
        ("char_duplicates_ratio", 0.4, 0.39, "ab\n\nab\nc", "char_dup_ratio"),
        ("new_line_ratio", 0.5, 0.49, "one two\nthree four\n", "list_ratio"),
    ],
)
def test_a_bound_itself_is_within_of_fineweb(name: str, bound: float, beyond: float, text: str, expected: str) -> None:
    """And the next one filters the text out."""
    assert reason(looser(**{name: bound}), text) == ""
    assert reason(looser(**{name: beyond}), text) == expected


@given(curious_texts)
def test_it_agrees_with_counts_of_another_kind_of_fineweb(text: str) -> None:
    """Counted line by line."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        assert reason(FinewebQuality(), text) == "empty"
        return
    stops, short, again, seen = 0, 0, 0, []
    for line in lines:
        stops += line[-1] in TERMINAL
        short += len(line) < 31
        again += len(line) if line in seen else 0
        seen.append(line)
    rules = {
        "line_punct_ratio": stops / len(lines) < 0.12,
        "short_line_ratio": short / len(lines) > 0.67,
        "char_dup_ratio": again / len("".join(text.split("\n"))) > 0.01,
        "list_ratio": (len(text.split("\n")) - 1) / (len(english().words(text)) or 1e9) > 0.3,
    }
    assert reason(FinewebQuality(), text) == next((name for name, broken in rules.items() if broken), "")


def test_a_text_of_the_one_word_that_is_left_out_has_a_verdict() -> None:
    """There is no word to divide by."""
    assert reason(looser(), "IS_ALPHA\n\n") == ""


def test_texts_without_any_punctuation_can_be_kept() -> None:
    """Those with a little are not."""
    step = FinewebQuality(line_punct_exclude_zero=True)
    assert reason(step, LONG) == ""
    assert reason(step, "\n".join([f"{LONG}."] + [f"{LONG} {number}" for number in range(9)])) == "line_punct_ratio"


def test_what_ends_a_sentence_can_be_named() -> None:
    """Instead of the terminal punctuation of all scripts."""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG};") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG} end") == ""
    assert reason(FinewebQuality(stop_chars=(";", "end")), f"{LONG}.") == "line_punct_ratio"


def test_many_answers_as_each_alone_of_fineweb() -> None:
    """With the numbers that decided, for people."""
    columns = DocumentColumns.without_fields([LONG, f"{LONG}."], [None] * 2)
    [(index, answer)] = FinewebQuality().many(columns)
    assert (index, answer) == (0, Rejected("line_punct_ratio"))
    assert isinstance(answer, Rejected)
    assert answer.detail == "0 of lines end with punctuation, under 0.12"
