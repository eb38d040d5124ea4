"""The tree of errors."""

import re
from itertools import combinations

from tokenmill import errors
from tokenmill.app.worker.ending import HOPELESS_CODES, RESUME_CODE
from tokenmill.errors import (
    DeadlyRecordError,
    DiskError,
    MissingTopicError,
    MovedError,
    PanicError,
    RecordError,
    SequencerError,
    StrayError,
    TokenMillError,
)

ALL = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TokenMillError)]
SHARED = {MissingTopicError, MovedError, PanicError, StrayError}
"""Kinds of another error that a command need not tell from it."""
NO_END = {DeadlyRecordError, RecordError, SequencerError}
"""What becomes of a record or a partition; no command ends with it."""


def test_every_error_has_an_exit_code_of_its_own() -> None:
    """But for kinds of one that mean the same to whoever called; none is a code that shells or signals use."""
    apart = [one for one in ALL if one not in SHARED | NO_END]
    for one, other in combinations(apart, 2):
        assert one.exit_code != other.exit_code, (one, other)
    assert all(0 < one.exit_code < 126 for one in apart)
    assert [one for one in apart if one.exit_code == RESUME_CODE] == [DiskError]
    assert RESUME_CODE not in HOPELESS_CODES


def test_the_page_of_errors_is_right() -> None:
    """The tree at the top of the module names each error with its code, below the one that it is a kind of."""
    rows = re.findall(r"^    ([│├└─ ]*)(\w+Error) +(\d+|-) ", errors.__doc__ or "", re.MULTILINE)
    told, above = {}, list[str]()
    for indent, name, code in rows:
        above[len(indent) // 4 :] = [name]
        told[name] = (above[-2] if len(above) > 1 else "Exception", code)
    codes = {one: "-" if one in NO_END else str(one.exit_code) for one in ALL}
    assert told == {one.__name__: (one.__base__.__name__, code) for one, code in codes.items() if one.__base__}
