"""The filter of repetitions, as Gopher and datatrove have it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import reason
from tokenmill.app.milling.steps.gopher_repetition import (
    GopherRepetition,
    repeated_sequence_characters,
    repetitions,
    top_sequence_characters,
)

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
def test_each_rule_has_a_reason(text: str, expected: str) -> None:
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
    assert reason(counted(**{name: ratio}), text) == ""
    assert reason(counted(**{name: ratio - 1e-9}), text) == name


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
