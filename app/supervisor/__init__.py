"""The supervisor: mill workers and a segment worker as child processes, started again when they end or stand still."""

from .limits import Limits
from .signals import run_until_signalled
from .status import ChainStatus, DeadLetterStatus, PartitionStatus, Status, WorkerStatus
from .supervisor import Event, Supervisor

__all__ = [
    "ChainStatus",
    "DeadLetterStatus",
    "Event",
    "Limits",
    "PartitionStatus",
    "Status",
    "Supervisor",
    "WorkerStatus",
    "run_until_signalled",
]
