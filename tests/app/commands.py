"""The command line, run in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from tests.conftest import logging_kept
from tokenmill.app.cli import main


class Told(NamedTuple):
    code: int
    out: str
    err: str


def invoke(*arguments: object, code: int | None = None) -> Told:
    """Run a command; one that ends with another exit code than ``code``, where that is given, is a failure."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, "utf-8", newline="", write_through=True) for each in written)
    with logging_kept(), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    told = Told(int(ended.value.code or 0), *(each.getvalue().decode(errors="surrogateescape") for each in written))
    assert code is None or told.code == code, told.err
    return told
