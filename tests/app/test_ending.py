"""How a worker ends when it cannot go on."""

import subprocess
import sys
from pathlib import Path
from typing import Final

FULL: Final = Path("/dev/full")
"""Takes nothing, as a file on a full disk."""
END: Final = """
from tokenmill.app.ending import end_process
from tokenmill.app.logs import set_up_logging
set_up_logging()
try:
    end_process("the disk is full")
except OSError:
    print("still here")
"""


def test_worker_ends_also_where_its_log_is_on_the_full_disk() -> None:
    """It cannot say why, but it does not stay, either."""
    with FULL.open("w") as log:
        ended = subprocess.run([sys.executable, "-c", END], stdout=subprocess.PIPE, stderr=log, check=False)
    assert (ended.returncode, ended.stdout) == (75, b"")
