"""Holding back the log messages of the Hugging Face hub's library, in favour of one message of ours."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening() -> Iterator[list[str]]:
    """Silence the hub's library inside the block; its messages are added to the list as they come."""
    heard: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        heard.append(record.getMessage())
        return False

    logger = logging.getLogger("huggingface_hub.utils._http")  # it has a handler, and the root's
    logger.addFilter(hear)
    try:
        yield heard
    finally:
        logger.removeFilter(hear)


def reason(error: Exception, heard: list[str]) -> str:
    """Return in one line why the hub gave nothing.

    The first message in ``heard`` is preferred to the error: after several attempts, the error may be one of the
    library itself, such as that its client has been closed.
    """
    text = heard[0] if heard else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__
