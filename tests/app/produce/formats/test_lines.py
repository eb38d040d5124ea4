"""Lines of any length."""

import io

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.produce.formats.lines import read_lines
from tokenmill.app.produce.items import Place


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
def test_lines_are_found_whatever_their_length(lines: list[bytes], limit: int) -> None:
    """Every line up to the limit is read as it is, and every longer one is named, by its number."""
    whole = b"\n".join(lines)
    expected = [
        (number, None if len(body) > limit else body)
        for number, line in enumerate(whole.split(b"\n"), start=1)
        for body in (line.rstrip(b"\r"),)
        if body.strip() or len(body) > limit
    ]

    found = [(number, data) for number, _, data in read_lines(io.BytesIO(whole), limit)]

    assert found == expected


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
def test_lines_are_found_again_from_any_place(lines: list[bytes], limit: int) -> None:
    """Number and end of a line are all that is needed to read the lines behind it."""
    whole = b"\n".join(lines)
    found = list(read_lines(io.BytesIO(whole), limit))

    for place, (number, at, _) in enumerate(found, 1):
        assert list(read_lines(io.BytesIO(whole), limit, Place(number, at))) == found[place:]
