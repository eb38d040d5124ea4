"""What the library of the Hugging Face hub says while it is asked: held back, for one message of ours."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_LOGGER: Final = "huggingface_hub.utils._http"
"""Tells of each try, through a handler of its own and through everyone else's: each line would come twice."""


@contextmanager
def listening() -> Iterator[list[str]]:
    """Let the hub be asked inside without a word; what its library would have said is in the list, as it comes."""
    heard: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        heard.append(record.getMessage())
        return False

    logger = logging.getLogger(_LOGGER)
    logger.addFilter(hear)
    try:
        yield heard
    finally:
        logger.removeFilter(hear)


def reason(error: Exception, heard: list[str]) -> str:
    """Return in one line why the hub gave nothing.

    What was heard first goes before the error: after several tries that is one of the library itself, such as that its
    client has been closed.
    """
    text = heard[0] if heard else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
