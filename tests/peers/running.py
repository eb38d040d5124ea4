"""Python in a process that has other people's packages."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


def run_with(kind: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with the packages that `make test-peers` puts into a folder; fail unless it ends well, or is killed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    own |= {"PYTHONPATH": f"{ROOT / '.venv' / 'peers' / kind}:{ROOT}", "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode not in {0, -signal.SIGKILL}:
        pytest.fail(ended.stdout + ended.stderr)
    return ended
