"""What replaces parts of aiokafka for speed, in processes that call `install`; all others have aiokafka as it is.

`receive_buffers` receives answers without copying them, `fetched_records` unpacks what a fetch brought a batch at a
time, `send_buffers` sends large records without copying them. They are written for one version of aiokafka, and loaded
only where that version is installed.
"""

from typing import Any, Final

import aiokafka
import structlog

from ..cluster import differences

VERSION: Final = "0.14.0"
"""The aiokafka that the replacements were written for."""

log = structlog.get_logger(__name__)


def whole_batches(value: Any) -> Any:
    """Return ``value``; as a consumer's ``value_deserializer`` it asks for `fetched_records.FetchedRecords`.

    Only for consumers whose readers take all that a fetch brought, or one record at a time. All others of the process
    get aiokafka's own records. Without the fast path it changes nothing.
    """
    return value


def install() -> bool:
    """Let this process receive, unpack and send faster; return whether it does. Call it before any client is made.

    Where it is not available, aiokafka is used as it is: slower, with the same records.
    """
    if not is_available():
        return False
    from .fetched_records import unpack_whole_batches  # noqa: PLC0415 - they can only be loaded with this aiokafka
    from .receive_buffers import receive_in_place  # noqa: PLC0415
    from .send_buffers import send_in_place  # noqa: PLC0415

    receive_in_place()
    unpack_whole_batches()
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
        from . import fetched_records, receive_buffers, send_buffers  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        return f"aiokafka {VERSION} lacks a part: {error}"
    modules = (receive_buffers, fetched_records, send_buffers)
    called = {part: parameters for module in modules for part, parameters in module.RELIED_ON.items()}
    attributes = {owner: names for module in modules for owner, names in module.ATTRIBUTES.items()}
    changed = differences(called, attributes)
    return f"aiokafka changed {', '.join(changed)}" if changed else None
