"""What the numbers were made on."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

PACKAGES: Final = ("aiokafka", "faust-streaming", "gigatoken", "numpy", "orjson", "tokenizers", "tokenmill")


@contextmanager
def memory_at_hand(size: int) -> Iterator[Callable[[], None]]:
    """Have free memory that is there: it is taken now, and set free when what is given to the block is called.

    The host of a virtual machine takes back what was free for some seconds. Who touches it next waits until it is there
    again, 3 seconds for each GiB instead of 0.2, which says nothing of a contender.
    """
    taken = [np.ones(min(size, psutil.virtual_memory().available // 2), np.uint8)]
    try:
        yield taken.clear
    finally:
        taken.clear()


def describe_machine() -> dict[str, Any]:
    """Return the machine in words and numbers."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
