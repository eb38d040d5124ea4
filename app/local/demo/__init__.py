"""``tokenmill demo``: the whole of TokenMill in two minutes, on text that everyone has."""

from .demo_run import run_demo
from .plan import DemoPlan

__all__ = ["DemoPlan", "run_demo"]
