"""``tokenmill demo``: the whole of TokenMill in two minutes, on text that everyone has."""

from .plan import DemoPlan
from .run import run_demo

__all__ = ["DemoPlan", "run_demo"]
