"""Files for their owner's eyes alone."""

import os
from pathlib import Path

from tokenmill.app.local.output_files import write_private


def test_only_the_owner_may_read_whatever_was_there_before(tmp_path: Path) -> None:
    """Neither an older file's rights nor a generous umask count."""
    file = tmp_path / "secret"
    file.write_text("old and longer")
    file.chmod(0o666)
    before = os.umask(0)
    try:
        write_private(file, "new ü")
    finally:
        os.umask(before)

    assert file.read_text("utf-8") == "new ü"
    assert file.stat().st_mode & 0o777 == 0o600
