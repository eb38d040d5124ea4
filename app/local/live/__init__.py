"""The live view: what the service does, for people who watch; plain lines where there is no terminal."""

from .scene import LiveScene, TrainingStatus
from .view import LiveView, log_to_file, saying_when_cancelled

__all__ = ["LiveScene", "LiveView", "TrainingStatus", "log_to_file", "saying_when_cancelled"]
