"""Verification: every chain recomputed from its raw topic by the reference, and held against token topic and store."""

from .verification import verify
from .verify_result import Advance, ChainResult, Difference, EraResult, Progress, VerifyResult

__all__ = ["Advance", "ChainResult", "Difference", "EraResult", "Progress", "VerifyResult", "verify"]
