"""The filter of texts with few long lines."""

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.milling.steps.c4_paragraph import C4Paragraph
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document


@given(st.lists(st.integers(190, 210), max_size=8), st.sampled_from(["\n", "\n\n", "\r\n"]))
def test_three_lines_of_two_hundred_characters_are_enough(lengths: list[int], end: str) -> None:
    lines = ["é" * length + end[:-1] for length in lengths]
    document = Document("\n".join(lines), None, {})
    third = sorted((len(line) for line in document.text.split("\n")), reverse=True)[2:3]
    expected = document if third and third[0] >= 200 else Rejected("too_few_paragraphs")
    assert C4Paragraph()(document) == expected


def test_other_line_ends_do_not_end_a_paragraph() -> None:
    assert isinstance(C4Paragraph()(Document("\r".join(["x" * 200] * 3), None, {})), Rejected)
