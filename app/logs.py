"""Log lines: events with fields, for people on a terminal and as JSON elsewhere, on standard error."""

import logging
import sys
from typing import Final

import structlog

NOISY: Final = ("aiokafka", "kafka", "faust", "mode", "asyncio")
"""Libraries that repeat themselves hundreds of times a second while a broker is away."""
LINES: Final = 5
"""What one noisy logger may say ..."""
WINDOW_SECONDS: Final = 10
"""... in so many seconds: enough to see what is wrong, too little to fill a disk in an outage of days."""


class RateLimit(logging.Filter):
    """Lets ``lines`` records of each logger pass in every `WINDOW_SECONDS`; the next says how many were held back.

    Errors and above with a traceback count like all others: in an outage they are what repeats.
    """

    def __init__(self, lines: int = LINES) -> None:
        """Let ``lines`` records of each logger pass in every window."""
        super().__init__()
        self._lines = lines
        self._windows: dict[str, tuple[int, int]] = {}
        self._held: dict[str, int] = {}

    def held_back(self) -> int:
        """Return how many records were held back and not yet reported."""
        return sum(self._held.values())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record passes; decided by its own creation time."""
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
    """Send all log lines of this process, its libraries' included, to standard error in one format.

    ``log_format`` is ``json``, ``console``, or ``auto``: console if standard error is a terminal. ``libraries`` is the
    least important level that the noisy libraries may log, each at most `LINES` a window. Calling it again replaces
    what the last call set up.
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
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_renderers(console=console))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log_level.upper())
    _limit_noise(handler, libraries)


def _renderers(*, console: bool) -> list[structlog.typing.Processor]:
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if console:
        return [strip, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return [strip, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _limit_noise(handler: logging.Handler, level: str) -> None:
    """Raise the noisy libraries' level, and limit on the handler: a logger's filter does not see its children's."""
    limit = RateLimit()

    def passes(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in NOISY or limit.filter(record)

    handler.addFilter(passes)
    for name in NOISY:
        logging.getLogger(name).setLevel(level.upper())
