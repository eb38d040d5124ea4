"""What kernels answer for a text, beside the numbers of their reasons, which count from 1."""

from typing import Final

KEEP: Final = 0
ASK: Final = -1
"""The reference decides: the text's words are not certain, or a rule would divide by zero."""
