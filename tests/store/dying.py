"""A process that dies before its nth call of the system, played by an exception."""

import os
from collections.abc import Callable, Iterable

import pytest


class Kill(BaseException):
    """The end of a process; nothing catches it."""


def dies(work: Callable[[], object], nth: int, calls: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Do the work, but die before the nth of these calls of `os`; return whether it came to it."""
    left = nth

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Kill
            return call(*args, **named)

        return wrapper

    with monkeypatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            work()
        except Kill:
            return True
    return False
