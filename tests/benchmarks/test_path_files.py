"""The trace of the three paths: it names the files that everybody expects there."""

import re
import subprocess
import sys

import pytest


@pytest.mark.needs("minutes")
def test_each_path_has_its_files() -> None:
    command = [sys.executable, "-m", "benchmarks.path_files"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    _, record, message, batch = re.split(r"^.* \d+ files \(goal: \d+\)$", done.stdout, flags=re.MULTILINE)
    assert {"app/milling/partition_mill.py", "app/mill/publisher.py"} <= {*record.split()}
    assert {"app/segments/token_partition.py", "tokenmill/store/writer.py"} <= {*message.split()}
    assert {"consumers/sample_lookup.py"} <= {*batch.split()}
    assert not {"app/mill/era_closing.py", "app/worker/watchdog.py"} & {*record.split()}
