"""Stages that a record passes, made deadly for one record each: this module stands for harm of any kind there.

As a user's function of the recipe, it does so in the workers of a supervisor, and in no other process.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from tokenmill.app.kafka.fetched_batches import PackedBatch
from tokenmill.app.mill import publisher
from tokenmill.app.milling.decoding import FramedDecoder
from tokenmill.app.milling.decoding.plain_values import AutoDecoder
from tokenmill.app.milling.steps.basic import NotEmpty
from tokenmill.app.milling.tokenizers.protocol import RawBytes
from tokenmill.app.worker.in_flight import BOARD_VARIABLE
from tokenmill.documents import Document

HARMLESS: Final = "_TESTS_HARMLESS"  # set for a service that is started again on a machine that can do more


class Stage(NamedTuple):
    owner: Any  # class or module of the function that must not have it in hand
    function: str
    value: bytes  # of the record
    shows: str  # what is found in the function's arguments, or in what it returns, for this record alone
    passed: bool  # whether a skipped record is spared the stage


STAGES: Final = {
    "fetch": Stage(PackedBatch, "unpack", b"deadly to unpack", "deadly to unpack", False),
    "decode": Stage(AutoDecoder, "many", b"deadly to decode", "deadly to decode", True),
    "learn": Stage(FramedDecoder, "learn", b"\0\0\0\x10\xe1 deadly to learn", "4321", True),
    "steps": Stage(NotEmpty, "many", b"deadly to a step", "deadly to a step", True),
    "tokenizer": Stage(RawBytes, "encode", b"deadly to encode", "deadly to encode", True),
    "letter": Stage(publisher, "letter_of", b"\xff deadly to write of", "deadly to write of", False),
}


def deadly(stage: Stage, end: Callable[[], NoReturn]) -> Callable[..., Any]:
    """Return the stage's function, made so that it ends everything once it has the record in hand."""
    function = getattr(stage.owner, stage.function)

    def harmful(*arguments: Any) -> Any:
        found = function(*arguments)
        if stage.shows in f"{arguments!r}{found!r}":
            end()
        return found

    return harmful


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def step(document: Document) -> Document:
    return document


step.version = "1"  # type: ignore[attr-defined]

if BOARD_VARIABLE in os.environ and HARMLESS not in os.environ:
    for one in STAGES.values():
        setattr(one.owner, one.function, deadly(one, kill))
