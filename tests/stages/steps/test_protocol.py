"""What every step promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.steps import user_functions
from tests.strategies import texts
from tokenmill.documents import Document, Limits
from tokenmill.stages.document_columns import DocumentColumns
from tokenmill.stages.steps import Step, open_steps

STEPS = open_steps(
    normalize="NFC", min_chars=3, function=f"{user_functions.__name__}:picky", limits=Limits(1000, 20, 40)
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@given(written=st.lists(texts | st.text(" \n\u0301e\u212ba", max_size=4), max_size=6))
def test_a_step_lets_pass_what_it_does_not_touch(step: Step, written: list[str]) -> None:
    """The answer to each other document is that document itself."""
    documents = [Document(text, number) for number, text in enumerate(written)]
    touched = set(step.touched(DocumentColumns.of(documents)))
    assert touched <= set(range(len(documents)))
    assert all(step(document) is document for number, document in enumerate(documents) if number not in touched)
