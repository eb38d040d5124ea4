"""Verification: every chain recomputed from its raw topic by the reference, and compared with token topic and store."""

from .verification import verify
from .verify_result import Advance, ChainResult, EraResult, VerifyDifference, VerifyProgress, VerifyResult

__all__ = ["Advance", "ChainResult", "EraResult", "VerifyDifference", "VerifyProgress", "VerifyResult", "verify"]
