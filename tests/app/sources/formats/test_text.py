"""Text files: lines of any length."""

import io
import os
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.sources.reading import peak_of
from tokenmill.app.sources.formats.text import read_lines
from tokenmill.app.sources.items import Place


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
@example(lines=[b"0000000\r"], limit=7)
@example(lines=[b"0000000\r\r", b"1"], limit=7)
@example(lines=[b"0000000\r\r1", b"1"], limit=7)
@example(lines=[b"0000000\r\r\r\r\r\r\r\r\r\r\r\r"], limit=7)
def test_lines_are_found_whatever_their_length(lines: list[bytes], limit: int) -> None:
    whole = b"\n".join(lines)
    expected = [
        (number, None if len(body) > limit else body)
        for number, line in enumerate(whole.split(b"\n"), start=1)
        for body in (line.rstrip(b"\r"),)
        if body.strip() or len(body) > limit
    ]
    found = [(number, data) for number, _, _, data in read_lines(io.BytesIO(whole), limit)]
    assert found == expected


@given(lines=st.lists(st.binary(max_size=12)), limit=st.integers(1, 10))
def test_lines_are_found_again_from_any_place(lines: list[bytes], limit: int) -> None:
    whole = b"\n".join(lines)
    found = list(read_lines(io.BytesIO(whole), limit))
    for place, (number, _, at, _) in enumerate(found, 1):
        assert list(read_lines(io.BytesIO(whole), limit, Place(number, at))) == found[place:]


def test_a_long_line_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(64 << 20)  # zeros, which take no room on disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nshort\n")
    with path.open("rb") as stream:
        found, peak = peak_of(lambda: list(read_lines(stream, 1 << 20)))
    assert [content for _, _, _, content in found] == [None, b"short"]
    assert peak < 5 << 20
