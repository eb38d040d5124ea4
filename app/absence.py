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
UNREACHED: Final = OF_AIOKAFKA | {"BrokerError"}
OF_SOCKETS: Final = frozenset({"OSError", "EOFError"})
"""TimeoutError and ConnectionError are OSErrors, asyncio's IncompleteReadError is an EOFError. Disks have some too."""
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
    if _is_a(error, UNREACHED):
        return True
    if type(error).__name__ != "KafkaError" or not isinstance(error, Exception):
        return False
    words = error.args[0] if error.args else ""
    return says_unreached(str(words)) or is_unreached(error.__cause__)


def is_broken_connection(error: object) -> bool:
    """Return whether what a Kafka client speaks of is a broker that could not be reached, or a socket's own error."""
    return is_unreached(error) or _is_a(error, OF_SOCKETS)


def _is_a(error: object, names: frozenset[str]) -> bool:
    kind = error if isinstance(error, type) else type(error)
    return not names.isdisjoint(parent.__name__ for parent in kind.__mro__)
