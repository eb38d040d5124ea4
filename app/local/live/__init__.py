"""The live view: what the service does, for people who watch; plain lines where there is no terminal."""

from .logs import log_to_file
from .scene import Scene, Training
from .view import View, telling_of_its_end

__all__ = ["Scene", "Training", "View", "log_to_file", "telling_of_its_end"]
