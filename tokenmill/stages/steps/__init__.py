"""What happens to a document before it is tokenized: transforms and filters, one module each, behind `Step`."""

from tokenmill.stages.steps.custom import CustomStep
from tokenmill.stages.steps.opening import open_steps
from tokenmill.stages.steps.protocol import Rejected, Step

__all__ = ["CustomStep", "Rejected", "Step", "open_steps"]
