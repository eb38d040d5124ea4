"""The supervisor: the workers of a service as child processes, started again when they end or get stuck."""

from ..tasks import run_until_signalled
from ..telemetry.status_document import WorkerStatus
from ..worker.watchdog import WatchLimits
from .status import Row, Status
from .supervisor import Event, Supervisor

__all__ = [
    "Event",
    "Row",
    "Status",
    "Supervisor",
    "WatchLimits",
    "WorkerStatus",
    "run_until_signalled",
]
