"""A user's function that does harm over some documents: it raises, hangs, holds or ends its process."""

import os
import re
import signal
import time
from typing import Final

from tokenmill.documents import Document

RAISES: Final = "a text over which the step raises"
HANGS: Final = "a text over which the step hangs"
KILLS: Final = "a text over which the step kills its process"
HOLDS: Final = "a text over which native code holds the interpreter, so that no other thread runs"


def harmful(document: Document) -> Document:
    match document.text:
        case text if text == RAISES:
            raise ValueError("the step's own words")
        case text if text == HANGS:
            while True:
                time.sleep(0.05)
        case text if text == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        case text if text == HOLDS:
            re.fullmatch("(a+)+b", "a" * 100)
    return document


harmful.version = "1"  # type: ignore[attr-defined]


def slow(document: Document) -> Document:
    time.sleep(0.06)
    return document


slow.version = "1"  # type: ignore[attr-defined]
