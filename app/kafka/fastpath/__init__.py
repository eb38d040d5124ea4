"""What replaces parts of aiokafka for speed, in processes that call `install`; all others have aiokafka as it is.

`receive_buffers` receives answers without copying them, `fetched_batches` hands out what a fetch brought a batch at a
time, `send_buffers` sends large records without copying them. They are written for one version of aiokafka, and used
only where that version is installed.
"""

from typing import Final

import aiokafka
import structlog

from .. import fetched_batches
from ..cluster import differences
from ..fetched_batches import hand_out_packed_batches

VERSION: Final = "0.14.0"
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
    if why := _why_not():
        log.warning("aiokafka is used without the fast path: slower, nothing else changes", reason=why)
    return why is None


def _why_not() -> str | None:
    """Return in words what of aiokafka is not as expected; None where all is."""
    if aiokafka.__version__ != VERSION:
        return f"it was written for aiokafka {VERSION}, not {aiokafka.__version__}"
    try:
        from . import receive_buffers, send_buffers  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        return f"aiokafka {VERSION} lacks a part: {error}"
    modules = (receive_buffers, fetched_batches, send_buffers)
    called = {part: parameters for module in modules for part, parameters in module.RELIED_ON.items()}
    attributes = {owner: names for module in modules for owner, names in module.ATTRIBUTES.items()}
    changed = differences(called, attributes)
    return f"aiokafka changed {', '.join(changed)}" if changed else None
