"""Which errors, and which log lines of aiokafka, say no more than that a broker could not be reached.

By name, so that a command that talks to no broker need not load aiokafka.
"""

from typing import Final

OF_AIOKAFKA: Final = frozenset(
    {
        "GroupCoordinatorNotAvailableError",
        "KafkaConnectionError",
        "KafkaTimeoutError",
        "NodeNotReadyError",
        "NotCoordinatorForGroupError",
        "RequestTimedOutError",
        "StaleMetadata",
    }
)
UNREACHED: Final = OF_AIOKAFKA | {"BrokerError", "OSError", "EOFError"}
"""TimeoutError and ConnectionError are OSErrors, asyncio's IncompleteReadError is an EOFError."""
UNTOLD: Final = (
    "Unable to bootstrap",
    "Unable to get cluster metadata",
    "Unable to request metadata",
    "Unable to update metadata",
    "Unable connect",
    "Marking the coordinator dead",
    "Heartbeat session expired",
    "Heartbeat failed for group %s: coordinator",
)
"""How what aiokafka says of it begins, where it does not say which error it was."""


def says_unreached(words: str) -> bool:
    """Return whether a line of aiokafka's, or its template, says that a broker could not be reached."""
    return words.startswith(UNTOLD)


def is_unreached(error: object) -> bool:
    """Return whether an error, or a class of errors, means that a broker could not be reached, and nothing else."""
    kind = error if isinstance(error, type) else type(error)
    if not UNREACHED.isdisjoint(parent.__name__ for parent in kind.__mro__):
        return True
    words = error.args[0] if isinstance(error, Exception) and error.args else ""
    return kind.__name__ == "KafkaError" and says_unreached(str(words))
