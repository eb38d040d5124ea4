"""The step that removes lines which are no sentences, as C4 and datatrove have it."""

import pytest
from hypothesis import given

from tests.app.milling.curation.odd_pieces import curious_texts
from tokenmill.app.milling.steps.c4_quality import C4Quality
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document

pytest.importorskip("spacy")
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
