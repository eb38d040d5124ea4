"""How this package's kernels are compiled: to machine code when first called, by numba, and kept on disk.

The code is kept in ``__pycache__`` beside the module, or below ``NUMBA_CACHE_DIR``, so a process loads it in
milliseconds. Kernels run outside the interpreter's lock.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Return ``function`` as machine code. Division by zero gives infinity or NaN, as in numpy."""
    kernel: Kernel = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    return kernel
