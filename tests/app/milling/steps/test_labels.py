"""Names under which the totals count what a step filters out."""

from tokenmill.app.milling.steps.labels import counting_key, step_labels


def test_later_steps_of_a_name_are_numbered() -> None:
    """The first keeps the name."""
    assert step_labels(["regex", "words", "regex", "regex"]) == ("regex", "words", "regex_2", "regex_3")


def test_reasons_of_short_forms_are_counted_as_they_are() -> None:
    """Totals of earlier streams go on; all others have the step's label before them."""
    assert counting_key("not_empty", "empty") == "empty"
    assert counting_key("function", "spam") == "spam"
    assert counting_key("regex_2", "matched") == "regex_2.matched"
