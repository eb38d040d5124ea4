"""Verification: every chain recomputed from its raw topic by the reference, and held against token topic and store."""

from .result import Advance, ChainResult, Difference, EraResult, Progress, VerifyResult
from .run import verify

__all__ = ["Advance", "ChainResult", "Difference", "EraResult", "Progress", "VerifyResult", "verify"]
