"""Log lines: events with fields, for people on a terminal and as JSON elsewhere, on standard error."""

import logging
import math
import sys
from typing import Final

import structlog

from .broker_contact import CONTACT, QUIET_SECONDS, REPEAT_SECONDS, Contact, is_broken_connection, says_unreached
from .terminal import escaped, escaped_lines

NOISY: Final = ("aiokafka", "kafka", "faust", "mode", "asyncio", "httpx")
"""Libraries that repeat themselves, hundreds of times a second while a broker is away."""
LINES: Final = 5
"""What one noisy logger may say ..."""
WINDOW_SECONDS: Final = 10
"""... in so many seconds: enough to see what is wrong, too little to fill a disk in an outage of days."""


class HeldTrouble(logging.Filter):
    """Holds back what libraries say, several times a second, of brokers that they cannot reach.

    `OutageLog` says so in a line. Where other brokers answer and the trouble lasts, one of them passes each minute, and
    says how many were held back.
    """

    def __init__(self, contact: Contact = CONTACT) -> None:
        super().__init__()
        self._contact = contact
        self._began = self._last = self._said = -math.inf
        self._held = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record passes, by its own creation time."""
        error, now = _named_error(record), record.created
        if not says_unreached(str(record.msg)) and not is_broken_connection(error):
            return True
        if error is not None or not self._contact.trouble:
            self._contact.trouble = record.getMessage()
        if now - self._last > REPEAT_SECONDS or self._contact.away_since is not None:
            self._began = now
        self._last = now
        if now - self._began <= 2 * QUIET_SECONDS or now - self._said < REPEAT_SECONDS:
            self._held += 1
            return False
        record.msg, record.args = f"{record.getMessage()} [{self._held} lines held back]", ()
        self._said, self._held = now, 0
        return True


def _named_error(record: logging.LogRecord) -> object:
    if record.exc_info and record.exc_info[1] is not None:
        return record.exc_info[1]
    arguments = record.args if isinstance(record.args, tuple) else ()
    errors = (item for item in arguments if isinstance(item, BaseException | type))
    return next(errors, None)


class RateLimit(logging.Filter):
    """Lets ``lines`` records of each logger pass in every `WINDOW_SECONDS`; the next says how many were held back."""

    def __init__(self, lines: int = LINES) -> None:
        super().__init__()
        self._lines = lines
        self._windows: dict[str, tuple[int, int]] = {}
        self._held: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record passes, by its own creation time."""
        now = int(record.created // WINDOW_SECONDS)
        window, passed = self._windows.get(record.name, (now, 0))
        passed = passed if window == now else 0
        self._windows[record.name] = (now, passed + 1)
        if passed >= self._lines:
            self._held[record.name] = self._held.get(record.name, 0) + 1
            return False
        if held := self._held.pop(record.name, 0):
            record.msg, record.args = f"{record.getMessage()} [{held} lines held back]", ()
        return True


def set_up_logging(log_format: str = "auto", log_level: str = "info", libraries: str = "warning") -> None:
    """Send all log lines of this process to standard error in one format: ``json``, ``console``, or ``auto``.

    ``auto`` is console if standard error is a terminal. ``libraries`` is the least important level of the noisy ones.
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    rendered: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if console:  # tracebacks are plain, as in JSON: the console's own would show local variables, passwords and records
        plain = structlog.dev.plain_traceback
        rendered = [_escape, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    rendered = [strip, structlog.processors.format_exc_info, *rendered]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=rendered))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log_level.upper())
    _limit_noise(handler, libraries)


def _escape(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Let nothing in a line but what may reach a terminal; only tracebacks and stacks are several lines."""
    return {
        escaped(name): escaped_lines(str(value)) if name in {"exception", "stack"} else _escaped_value(value)
        for name, value in event.items()
    }


def _escaped_value(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float)) else escaped(str(value))


def _limit_noise(handler: logging.Handler, level: str) -> None:
    """Raise the noisy libraries' level, and limit on the handler: a logger's filter does not see its children's."""
    limit, trouble = RateLimit(), HeldTrouble()
    everything = logging.getLogger().isEnabledFor(logging.DEBUG)

    def passes(record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in NOISY:
            return True
        return (everything or trouble.filter(record)) and limit.filter(record)

    handler.addFilter(passes)
    for name in NOISY:
        logging.getLogger(name).setLevel(level.upper())
