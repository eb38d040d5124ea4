"""What happens to a document before it is tokenized: transforms and filters, one module each, behind `Step`."""

from tokenmill.steps.custom import CustomStep
from tokenmill.steps.opening import open_steps
from tokenmill.steps.protocol import Rejected, Step

__all__ = ["CustomStep", "Rejected", "Step", "open_steps"]
