"""What replaces parts of aiokafka for speed, in processes that call `install`; all others have aiokafka as it is.

`receive_buffers` receives answers without copying them, `fetched_batches` hands out what a fetch brought a batch at a
time, `send_buffers` sends large records without copying them. They are written for one version of aiokafka, and used
only where that version is installed.
"""

from typing import Final

import aiokafka
import structlog

from ..cluster import TESTED
from ..fetched_batches import hand_out_packed_batches

VERSION: Final = TESTED["aiokafka"]
"""The aiokafka that the replacements were written for."""

log = structlog.get_logger(__name__)


def install() -> bool:
    """Let this process receive, unpack and send faster; return whether it does. Call it before any client is made.

    Where it is not available, aiokafka is used as it is: slower, with the same records.
    """
    if not is_available():
        return False
    from .receive_buffers import receive_in_place  # noqa: PLC0415 - they can only be loaded with this aiokafka
    from .send_buffers import send_in_place  # noqa: PLC0415

    receive_in_place()
    hand_out_packed_batches()
    send_in_place()
    return True


def is_available() -> bool:
    """Return whether the fast path fits the aiokafka that is installed; if not, the log says why in one line."""
    fits: bool = aiokafka.__version__ == VERSION
    if not fits:
        log.warning(
            "aiokafka is used without the fast path: slower, nothing else changes",
            reason=f"it was written for aiokafka {VERSION}, not {aiokafka.__version__}",
        )
    return fits
