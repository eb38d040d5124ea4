"""Whether brokers answer this process, which errors say no more than that they do not, and log lines about it.

A connected client hears from a broker every few seconds, whether it has work or not: so a process that has heard
nothing for longer reaches none, however its connections look. Errors are told by name, so that a command that talks to
no broker need not load aiokafka.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

QUIET_SECONDS: Final = 6.0
"""After so long without an answer, no broker answers: twice the time between two looks at the cluster. Operators
are to know within 10 s."""
STILL_SECONDS: Final = 3.0
"""An event loop that turns so seldom was busy, or the process was stopped: it could have heard nothing."""
GOODBYE_SECONDS: Final = 2.5
"""How long one who ends waits for any answer. A broker that is there gives one in milliseconds, and a worker asks for
something every two seconds."""
REPEAT_SECONDS: Final = 60.0

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
OF_SOCKETS: Final = frozenset({"OSError", "EOFError"})
"""TimeoutError and ConnectionError are OSErrors, asyncio's IncompleteReadError is an EOFError. Disks have some too."""
LINES_OF_AIOKAFKA: Final = (
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

log = structlog.get_logger(__name__)


class Contact:
    """When a broker last answered. Safe in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        """Take a broker to have answered just now: there was no time to ask."""
        self.trouble = ""  # the last thing that a library said of a connection that failed; empty before
        self._clock = clock
        self._wall = wall
        self._turned = clock()
        self._last: tuple[float, float] = (clock(), wall())
        self._answered: set[str] = set()
        self._named: dict[str, tuple[float, str]] = {}
        """Addresses that brokers named: when connecting began there, or failed, and why it failed."""

    def connects(self, address: str) -> None:
        """Note that connecting to an address begins that a broker has named."""
        self._named[address] = self._clock(), ""

    def refused(self, address: str, reason: str) -> None:
        """Note that this has failed."""
        self._named[address] = self._clock(), reason

    def answered(self, address: str) -> None:
        """Note that a broker answers at an address, which may be one of those that are asked first."""
        self._answered.add(address)

    @property
    def unreached(self) -> str | None:
        """An address that a broker named and where none has ever answered, and why; None where there is none."""
        for address, (since, why) in list(self._named.items()) if self._answered else ():
            passed = self._clock() - since
            if address not in self._answered and (passed < REPEAT_SECONDS if why else passed >= STILL_SECONDS):
                return f"{address} ({why or f'no answer in {passed:.0f} s'})"
        return None

    def unreached_from(self, servers: str) -> str | None:
        """Return such an address, if it can be one that a broker at one of these addresses has named."""
        asked = {address.strip() for address in servers.split(",")}
        return None if asked.isdisjoint(self._answered) else self.unreached

    def turn(self) -> None:
        """Note that the event loop turns, every second or oftener; while it does not, silence does not count."""
        now = self._clock()
        if now - self._turned > STILL_SECONDS:
            self._last = (now, self._last[1])
        self._turned = now

    def heard(self) -> None:
        """Note that bytes of a broker's answer have arrived."""
        self._last = (self._clock(), self._wall())

    @property
    def last_answer(self) -> float:
        """When a broker last answered, in seconds since 1970."""
        return self._last[1]

    @property
    def quiet(self) -> float:
        """Seconds since a broker last answered."""
        return self._clock() - self._last[0]

    @property
    def away_since(self) -> float | None:
        """Since when no broker answers, in seconds since 1970; None while one does."""
        last, since = self._last
        return since if self._clock() - last >= QUIET_SECONDS else None

    def is_deaf(self, seconds: float) -> bool:
        """Return whether one who began to say goodbye ``seconds`` ago should not wait any longer."""
        return self.away_since is not None or min(seconds, self.quiet) >= GOODBYE_SECONDS


CONTACT: Final = Contact()


def moment(seconds: float) -> str:
    """Return a moment in seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def no_answer(servers: str, since: float | None = None, contact: Contact | None = None) -> str:
    """Return in words that no broker answers, or only where we ask first; ``since`` when, if it lasts."""
    lasts = "" if since is None else f" since {moment(since)}"
    unreached = (contact or CONTACT).unreached_from(servers)
    if unreached is None:
        return f"no broker answers at {servers}{lasts}"
    return (
        f"a broker answers at {servers}, and names an address at which none answers: {unreached}{lasts}. Correct "
        "its advertised.listeners, or let clients here reach that address"
    )


def transaction_words(since: float) -> str:
    """Return in words that a partition's records wait for the end of a transaction."""
    return f"a transaction is open (its first record is of {moment(since)}): what is behind waits for its end"


class OutageLog:
    """Says in the log that no broker answers, again each minute, and that one answers again. Call `look` often."""

    def __init__(self, servers: str, contact: Contact = CONTACT, clock: Callable[[], float] = time.monotonic) -> None:
        self._servers = servers
        self._contact = contact
        self._clock = clock
        self._since: float | None = None
        self._said = 0.0

    def look(self) -> None:
        """Write a line if there is something to say."""
        since, now = self._contact.away_since, self._clock()
        if since is None:
            if self._since is not None:
                seconds = round(self._contact.last_answer - self._since)
                log.warning("a broker answers again", servers=self._servers, after_seconds=seconds)
        elif self._since is None or now - self._said >= REPEAT_SECONDS:
            self._said = now
            unreached = self._contact.unreached_from(self._servers) and no_answer(self._servers, since, self._contact)
            log.warning(
                "no broker answers", servers=self._servers, since=moment(since),
                seconds=round(self._contact.quiet), error=unreached or self._contact.trouble or None,
            )  # fmt: skip
        self._since = since


def says_unreached(words: str) -> bool:
    """Return whether a line of aiokafka's, or its template, says that a broker could not be reached."""
    return words.startswith(LINES_OF_AIOKAFKA)


def is_unreached(error: object) -> bool:
    """Return whether an error, or a class of errors, means that a broker could not be reached, and nothing else."""
    if _is_a(error, OF_AIOKAFKA | {"BrokerError"}):
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
